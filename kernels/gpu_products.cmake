# Products with packed weights of every GPU platform: modules (without extension), and for each kernel of
# them the matrix instruction that it is made of. Sets ATLAS_PRODUCT_MODULES and
# ATLAS_PRODUCT_INSTRUCTIONS_<cuda|hip>.
set(ATLAS_PRODUCT_MODULES encode_bf16)
set(ATLAS_PRODUCT_INSTRUCTIONS_cuda "")
set(ATLAS_PRODUCT_INSTRUCTIONS_hip "")
function(atlas_product_module module)
  list(APPEND ATLAS_PRODUCT_MODULES ${module})
  foreach(format ${ARGN})
    foreach(kernel linear_${format} linear_${format}_many grouped_${format} grouped_${format}_many)
      list(APPEND ATLAS_PRODUCT_INSTRUCTIONS_cuda
        ${module}/${kernel}=mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32)
      list(APPEND ATLAS_PRODUCT_INSTRUCTIONS_hip ${module}/${kernel}=v_wmma_f32_16x16x16_bf16)
    endforeach()
  endforeach()
  foreach(name MODULES INSTRUCTIONS_cuda INSTRUCTIONS_hip)
    set(ATLAS_PRODUCT_${name} ${ATLAS_PRODUCT_${name}} PARENT_SCOPE)
  endforeach()
endfunction()

atlas_product_module(linear_float bf16 f16 f32)
list(APPEND ATLAS_PRODUCT_MODULES linear_ends)
foreach(kernel linear_bf16_silu linear_bf16_mean)
  list(APPEND ATLAS_PRODUCT_INSTRUCTIONS_cuda
    linear_ends/${kernel}=mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32)
  list(APPEND ATLAS_PRODUCT_INSTRUCTIONS_hip linear_ends/${kernel}=v_wmma_f32_16x16x16_bf16)
endforeach()
atlas_product_module(linear_nvfp4 nvfp4)
atlas_product_module(linear_fp8 fp8 fp8_b128 mxfp8)
atlas_product_module(linear_packed q4_0 q4_1 q5_0 q5_1 q8_0)
atlas_product_module(linear_packed_k q4_k q5_k q6_k)
