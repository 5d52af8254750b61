// Makes the tensors of a Hugging Face checkpoint look alike whoever saved it, and settles what only
// the tensors can tell about the model. Private to this room.
#pragma once

#include "daemon/base/status.h"
#include "daemon/model/checkpoint/checkpoint_state.h"

namespace atlas::model {

/// Works on a sealed table of files that are mapped:
/// - leaves out the tensors of a vision tower (model.visual., visual.), with one note;
/// - names the draft head's tensors mtp.*, where a repack wrote model.mtp.*;
/// - replaces experts that are fused into one tensor a layer by slices with the names of separate
///   experts: row block e of <prefix>.mlp.experts.gate_up_proj [experts, 2 * intermediate, hidden]
///   becomes experts.<e>.gate_proj.weight and experts.<e>.up_proj.weight (the first and second half
///   of its rows), that of down_proj [experts, hidden, intermediate] experts.<e>.down_proj.weight;
/// - fills ModelConfig's prefix, draft_head and ngram->shards.
/// Errors: kInvalidArgument for fused experts whose shape is not the configuration's, and for norms
/// of qwen4_exp that already have the 1 of 1 + weight in them; kUnimplemented for a fused type that
/// is no plain float.
Status settle_tensors(CheckpointState* state);

}  // namespace atlas::model
