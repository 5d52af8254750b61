// What a checkpoint's configuration says about the formats of its weights. Private to this room.
#pragma once

#include <string>
#include <string_view>

#include "daemon/model/checkpoint/json_object.h"
#include "daemon/plan/declared_formats.h"

namespace atlas::model {

/// Reads config.json's "quantization_config" out of `config`: methods exl3, fp8, modelopt and
/// compressed-tensors, each in the words of its tool. Numbers of bits and codebooks are not
/// compared: packs mix them, and their tensors say what they are. A method that is not known gives
/// a declaration without formats that names it; a word for a format that is not known stands in its
/// `unknown`, and what it is about is not compared.
/// Errors: kInvalidArgument for values of wrong types, with file and key.
/// Source: exllamav3's, NVIDIA Model Optimizer's and compressed-tensors' files; module names as
/// transformers matches "modules_to_not_convert".
Result<plan::DeclaredFormats> read_quantization_config(const nlohmann::json& object,
                                                       const std::string& path);

/// Reads Model Optimizer's own hf_quant_config.json and puts it behind what config.json says: lists
/// of modules are joined, and formats that config.json has stay.
Status add_modelopt_config(std::string_view text, const std::string& path,
                           plan::DeclaredFormats* declared);

/// For the load log: that a word is not known, and what may be meant.
std::string unknown_format_note(const plan::UnknownWord& unknown);

}  // namespace atlas::model
