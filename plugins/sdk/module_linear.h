// The quantization API for plugins whose matrices are several tensors of a module (codes and
// scales): plans as in packed_linear.h, claims and packing from what the plugin makes of the
// tensors. The plugin's Traits are those of packed_linear.h (no format has a `pack`) and
//   struct Matrix { const PackedFormat* format; uint64_t n, k; const AtlasTensor* codes; ... };
//   static std::optional<Matrix> recognise(const ModuleTensors&);  // throws Failure
//   static void pack(const Matrix&, uint64_t begin, uint64_t end, uint8_t* out);  // throws Failure
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "plugins/sdk/module_tensors.h"
#include "plugins/sdk/packed_linear.h"

namespace atlas::sdk {

/// The formats of the query's platform, for `recognise`; the CPU's if it is not served (then the
/// query is refused once a matrix is recognised).
template <class Traits>
std::span<const PackedFormat> table_of_query(const ModuleTensors& tensors) {
  const char* platform = tensors.query().platform;
  const auto formats = Traits::formats(platform == nullptr ? "" : platform);
  return formats.empty() ? Traits::formats("cpu") : formats;
}

template <class Traits>
class ModuleLinear : PackedLinear<Traits> {
  using Base = PackedLinear<Traits>;
  using Matrix = typename Traits::Matrix;

 public:
  static constexpr AtlasQuantApi api() {
    AtlasQuantApi api = Base::api();
    api.claim = claim;
    api.pack = pack;
    return api;
  }

 private:
  /// Nothing if the module is not in a format of this plugin; otherwise all shapes are checked.
  static std::optional<Matrix> matrix_of(const AtlasWeightQuery& query) {
    const std::optional<Matrix> matrix = Traits::recognise(ModuleTensors(query));
    if (matrix) {
      Base::check_platform(query.platform);
      Base::check_sizes(query, describe(*matrix->codes), matrix->n, matrix->k, *matrix->format);
    }
    return matrix;
  }

  static AtlasCode claim(const AtlasWeightQuery* query, AtlasWeightClaim* out, AtlasError* error) {
    return guarded(error, [&] {
      Base::check_size(query, "AtlasWeightQuery");
      if (out == nullptr) Base::refuse("the claim is null");
      *out = AtlasWeightClaim{};
      out->struct_size = sizeof(*out);
      if (const std::optional<Matrix> matrix = matrix_of(*query)) {
        Base::fill(*out, *matrix->format, matrix->n, matrix->k);
      }
      return ATLAS_OK;
    });
  }

  static AtlasCode pack(const AtlasWeightQuery* query, const AtlasWeightClaim* claimed,
                        uint64_t begin, uint64_t end, void* out, AtlasError* error) {
    return guarded(error, [&] {
      Base::check_size(query, "AtlasWeightQuery");
      Base::check_size(claimed, "AtlasWeightClaim");
      const std::optional<Matrix> matrix = matrix_of(*query);
      if (!matrix || matrix->format != &Base::find_format(query->platform, claimed->format)) {
        Base::refuse(std::string("the tensors of ") + query->module + " are not in format " +
                     claimed->format);
      }
      if (claimed->n != matrix->n || claimed->k != matrix->k || begin > end ||
          end > Base::groups(matrix->n)) {
        Base::refuse("row groups " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
                     describe(*matrix->codes) + " do not fit its claim");
      }
      if (begin != end && out == nullptr) Base::refuse("there is no memory to pack into");
      if (begin != end) Traits::pack(*matrix, begin, end, static_cast<uint8_t*>(out));
      return ATLAS_OK;
    });
  }
};

}  // namespace atlas::sdk
