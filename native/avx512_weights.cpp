// Transforms weights for Winograd kernels, with AVX-512.
#include "winograd_weights_loops.h"

namespace bitstrata::avx512 {

void winograd_weights2(const WeightGroup& group) noexcept { transform_weights<Tile2>(group); }
void winograd_weights3(const WeightGroup& group) noexcept { transform_weights<Tile3>(group); }
void winograd_weights4(const WeightGroup& group) noexcept { transform_weights<Tile4>(group); }

}  // namespace bitstrata::avx512
