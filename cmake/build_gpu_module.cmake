# Builds one module of a GPU pack. Run as a script: cmake -DFORM=cuda|hip -DSOURCE= -DOUTPUT= -DWORK= (the
# beginning of intermediate files' names) -DPLATFORM= -DARCHITECTURE= -DDEFINE= -DROOT= -DNVCC= -DCLANG=
# -DSPILLS= (the file of excused spills) -DINSTRUCTIONS=kernel=instruction|... -P build_gpu_module.cmake
#
# Leaves WORK.d (what the module was made of), the PTX or assembly, and WORK.txt (registers, shared
# memory, spills), which tools/check/isa reads. Fails if a kernel spills registers without an excuse, or
# lacks an instruction that it must have.

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${SOURCE}: ${ARGV0} failed (${result})\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# Fails if `kernel` spills `count` (bytes or registers) and SPILLS has no line "PLATFORM/kernel: reason".
function(judge_spill kernel count)
  if(count EQUAL 0)
    return()
  endif()
  file(STRINGS ${SPILLS} excuses REGEX "^${PLATFORM}/${kernel}: .")
  if(NOT excuses)
    file(REMOVE ${OUTPUT})
    message(FATAL_ERROR "${SOURCE}: kernel '${kernel}' spills registers (${count}) on ${PLATFORM}; if that "
      "must be, ${SPILLS} says why")
  endif()
endfunction()

set(common -std=c++20 -O3 -I${ROOT} -D${DEFINE}=1)
if(FORM STREQUAL "cuda")
  # In two steps: only relocatable PTX keeps digests as symbols that the file shows.
  get_filename_component(tools ${NVCC} DIRECTORY)
  set(listing ${WORK}.ptx)
  run(${NVCC} -ptx -rdc=true -gencode arch=compute_${ARCHITECTURE},code=compute_${ARCHITECTURE}
    --fmad=false --expt-relaxed-constexpr -Werror all-warnings ${common}
    -MD -MF ${WORK}.d -MT ${OUTPUT} -o ${listing} ${SOURCE})
  run(${tools}/ptxas -v -Werror -O3 -arch=sm_${ARCHITECTURE} -o ${OUTPUT} ${listing})
  file(WRITE ${WORK}.txt "${output}")
  # ptxas only mentions that it made matrix instructions of four warps wait for each other.
  if(output MATCHES "\\(C75[0-9]+\\)[^\n]*|[^\n]*wgmma[^\n]*serialized[^\n]*")
    file(REMOVE ${OUTPUT})
    message(FATAL_ERROR "${SOURCE}: matrix instructions do not overlap: ${CMAKE_MATCH_0}")
  endif()
  string(REGEX MATCHALL "Compiling entry function 'atlas_kernel_[^']*'[^\n]*\n[^\n]*\n[^\n]*" kernels "${output}")
  foreach(entry ${kernels})
    string(REGEX MATCH "atlas_kernel_([^']*)'" name "${entry}")
    set(name ${CMAKE_MATCH_1})
    string(REGEX MATCH "([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads" bytes "${entry}")
    math(EXPR count "${CMAKE_MATCH_1} + ${CMAKE_MATCH_2}")
    judge_spill(${name} ${count})
  endforeach()
  set(kernel_begin ".entry atlas_kernel_")
  set(kernel_end "(")
else()
  run(${CLANG} -x hip --offload-arch=${ARCHITECTURE} --offload-device-only --no-gpu-bundle-output
    -nogpulib -nogpuinc -ffp-contract=off -Wall -Wextra -Werror ${common}
    -include ${ROOT}/kernels/common/device/form.h -save-temps=obj
    -MD -MF ${WORK}.d -MT ${OUTPUT} -o ${WORK}.hsaco ${SOURCE})
  get_filename_component(folder ${WORK} DIRECTORY)
  get_filename_component(name ${WORK} NAME)
  set(listing ${folder}/${name}-hip-amdgcn-amd-amdhsa-${ARCHITECTURE}.s)
  file(STRINGS ${listing} resources
    REGEX "\\.(name: +atlas_kernel|(max_flat_workgroup_size|vgpr_count|sgpr_count|vgpr_spill_count|sgpr_spill_count|group_segment_fixed_size):)")
  string(REPLACE ";" "\n" report "${resources}")
  file(WRITE ${WORK}.txt "${report}\n")
  foreach(line ${resources})
    if(line MATCHES "name: +atlas_kernel_([^ ]*)")
      set(name ${CMAKE_MATCH_1})
    elseif(line MATCHES "gpr_spill_count: +([0-9]+)")
      judge_spill(${name} ${CMAKE_MATCH_1})
    endif()
  endforeach()
  file(COPY_FILE ${WORK}.hsaco ${OUTPUT})
  set(kernel_begin "\natlas_kernel_")
  set(kernel_end ":")
endif()

# A kernel's text goes from its begin to the next kernel's.
file(READ ${listing} text)
string(REPLACE ";" "," text "${text}")
string(REPLACE "|" ";" INSTRUCTIONS "${INSTRUCTIONS}")
foreach(wanted ${INSTRUCTIONS})
  string(REGEX MATCH "^([^=]+)=(.+)$" parts "${wanted}")
  set(kernel ${CMAKE_MATCH_1})
  set(instruction ${CMAKE_MATCH_2})
  string(FIND "${text}" "${kernel_begin}${kernel}${kernel_end}" begin)
  if(begin EQUAL -1)
    file(REMOVE ${OUTPUT})
    message(FATAL_ERROR "${SOURCE}: there is no kernel '${kernel}' to look for ${instruction} in")
  endif()
  string(SUBSTRING "${text}" ${begin} -1 body)
  string(SUBSTRING "${body}" 1 -1 rest)
  string(FIND "${rest}" "${kernel_begin}" end)
  string(SUBSTRING "${rest}" 0 ${end} body)
  string(FIND "${body}" "${instruction}" found)
  if(found EQUAL -1)
    file(REMOVE ${OUTPUT})
    message(FATAL_ERROR "${SOURCE}: kernel '${kernel}' has no instruction ${instruction}")
  endif()
endforeach()
