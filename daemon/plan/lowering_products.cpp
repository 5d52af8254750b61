// Products with packed weights: embeddings, linear operations, and mixtures of experts.
#include <algorithm>
#include <numeric>

#include "daemon/plan/step_lowering.h"

namespace atlas::plan {

using kernels::align_up;

Status StepLowering::lower(const EmbedOp& op) {
  ATLAS_ASSIGN_OR_RETURN(const auto placed, builder_.place({op.weight}));
  const Weight& weight = builder_.plan.weights[placed.front().weight];
  if (weight.k != op.y.width) {
    return invalid_argument("rows of '{}' have {} elements, and {} are expected", op.weight.module,
                            weight.k, op.y.width);
  }
  const Rows y = rows(op.y);
  AtlasGatherProblem problem{};
  problem.struct_size = sizeof(problem);
  problem.max_rows = y.max_rows;
  problem.platform = builder_.plan.platform.c_str();
  problem.format = weight.format.c_str();
  problem.n = weight.n;
  problem.k = weight.k;
  if (op.next) {
    problem.id_stride = sizeof(uint32_t);
    problem.ids = {builder_.plan.next_ids, 0, 0};
  } else {
    problem.id_stride = sizeof(kernels::RowInput);
    problem.ids = {
        op.y.domain == RowDomain::kDraftRows ? builder_.plan.draft_rows : builder_.plan.rows, 0,
        offsetof(kernels::RowInput, token)};
  }
  problem.y = y.at;
  problem.y_stride = y.stride;
  problem.weight = {weight.buffer, 0, 0};
  problem.row_count = y.count;
  owner_ = weight.plugin;
  written(op.y);
  return abi::call(fmt::format("plugin '{}', gather", weight.plugin),
                   builder_.quant(weight.plugin).api->plan_gather, &problem, &sink_);
}

Status StepLowering::lower(const LinearOp& op) {
  ATLAS_ASSIGN_OR_RETURN(const auto placed, builder_.place(op.weights));
  ATLAS_RETURN_IF_ERROR(products(rows(op.x), placed, rows(op.y), op.add));
  written(op.y);
  return {};
}

Status StepLowering::products(const Rows& x, const std::vector<PlacedWeight>& placed, const Rows& y,
                              bool add) {
  uint64_t n = 0;
  for (const PlacedWeight& one : placed) {
    const Weight& weight = builder_.plan.weights[one.weight];
    if (weight.k != x.width) {
      return invalid_argument("weight '{}' takes {} inputs, and its input has {}",
                              weight.parts.front().module, weight.k, x.width);
    }
    n += weight.n;
  }
  if (n != y.width) {
    return invalid_argument("weight '{}' and those beside it give {} outputs, and {} are expected",
                            builder_.plan.weights[placed.front().weight].parts.front().module, n,
                            y.width);
  }
  ATLAS_ASSIGN_OR_RETURN(auto runs, product_runs(x, placed, y, add));
  const bool forks = runs.size() > 1 && can_fork();
  if (forks) {
    ATLAS_RETURN_IF_ERROR(encode(x, placed));
    // The largest comes first: it takes the longest, and its blocks find room while what stands
    // before the fork still runs.
    const auto width = [](const std::vector<ProductPart>& run) {
      return std::accumulate(
          run.begin(), run.end(), uint64_t{0},
          [](uint64_t sum, const ProductPart& one) { return sum + one.y.width; });
    };
    std::stable_sort(runs.begin(), runs.end(),
                     [&](const auto& a, const auto& b) { return width(a) > width(b); });
    fork();
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    if (forks && i != 0) branch();
    ATLAS_RETURN_IF_ERROR(product(x, runs[i], add));
  }
  if (forks) join();
  return {};
}

Result<std::vector<std::vector<StepLowering::ProductPart>>> StepLowering::product_runs(
    const Rows& x, const std::vector<PlacedWeight>& placed, const Rows& y, bool add) {
  std::vector<std::vector<ProductPart>> runs;
  for (size_t i = 0; i < placed.size();) {
    std::vector<ProductPart>& parts = runs.emplace_back();
    const Weight& weight = builder_.plan.weights[placed[i].weight];
    ATLAS_ASSIGN_OR_RETURN(const AtlasLinearNeeds needed, needs(weight, x.max_rows));
    const bool fuses = !add || (needed.fused_epilogues & (1u << ATLAS_EPILOGUE_ADD)) != 0;
    const size_t most = fuses ? std::max(needed.most_beside, 1u) : 1;
    for (; i < placed.size() && parts.size() < most; ++i) {
      const Weight& next = builder_.plan.weights[placed[i].weight];
      if (next.plugin != weight.plugin || next.format != weight.format) break;
      Rows part = y;
      part.at.offset += placed[i].y_first * sizeof(float);
      part.at.row_bytes = static_cast<uint32_t>(next.n * sizeof(float));
      part.width = next.n;
      parts.push_back({&next, part});
    }
  }
  return runs;
}

Result<AtlasLinearNeeds> StepLowering::needs(const Weight& weight, uint32_t max_rows) {
  AtlasLinearProblem problem{};
  problem.struct_size = sizeof(problem);
  problem.max_rows = max_rows;
  problem.platform = builder_.plan.platform.c_str();
  problem.format = weight.format.c_str();
  problem.n = weight.n;
  problem.k = weight.k;
  problem.x_stride = weight.k;
  problem.y_stride = weight.n;
  AtlasLinearNeeds needs{};
  needs.struct_size = sizeof(needs);
  ATLAS_RETURN_IF_ERROR(abi::call(fmt::format("plugin '{}', product", weight.plugin),
                                  builder_.quant(weight.plugin).api->linear_needs, &problem,
                                  &needs));
  return needs;
}

AtlasLinearProblem StepLowering::linear_problem(const Rows& x, const Weight& weight,
                                                const Rows& y) const {
  AtlasLinearProblem problem{};
  problem.struct_size = sizeof(problem);
  problem.max_rows = x.max_rows;
  problem.platform = builder_.plan.platform.c_str();
  problem.format = weight.format.c_str();
  problem.n = weight.n;
  problem.k = weight.k;
  problem.y_stride = y.stride;
  problem.x_stride = x.stride;
  problem.y = y.at;
  problem.weight = {weight.buffer, 0, 0};
  problem.row_count = x.count;
  problem.workspace = kNowhere;
  problem.streams = kNowhere;
  return problem;
}

/// Products that one call of a plugin does, alike but for their weights and outputs.
Status StepLowering::product(const Rows& x, std::span<const ProductPart> parts, bool add) {
  const Weight& first = *parts.front().weight;
  const std::string context = fmt::format("plugin '{}', product", first.plugin);
  std::vector<AtlasLinearProblem> problems(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    problems[i] = linear_problem(x, *parts[i].weight, parts[i].y);
    problems[i].epilogue = add ? ATLAS_EPILOGUE_ADD : ATLAS_EPILOGUE_NONE;
    problems[i].beside = i + 1 < parts.size() ? &problems[i + 1] : nullptr;
  }
  AtlasLinearProblem& problem = problems.front();
  AtlasLinearNeeds needed{};
  needed.struct_size = sizeof(needed);
  ATLAS_RETURN_IF_ERROR(
      abi::call(context, builder_.quant(first.plugin).api->linear_needs, &problem, &needed));
  if (needed.workspace_bytes != 0) problem.workspace = scratch("workspace", needed.workspace_bytes);
  ATLAS_ASSIGN_OR_RETURN(problem.x, encoded(x, needed, first.plugin));
  if (add && (needed.fused_epilogues & (1u << ATLAS_EPILOGUE_ADD)) == 0) {
    return product_then_add(problem, parts.front().y, first);
  }
  owner_ = first.plugin;
  return abi::call(context, builder_.quant(first.plugin).api->plan_linear, &problem, &sink_);
}

/// For a plugin that cannot add: its product goes to a buffer of its own, and the core adds that.
Status StepLowering::product_then_add(const AtlasLinearProblem& fused, const Rows& y,
                                      const Weight& weight) {
  AtlasLinearProblem problem = fused;
  problem.epilogue = ATLAS_EPILOGUE_NONE;
  problem.y_stride = weight.n;
  problem.y = scratch("product", problem.max_rows * weight.n * sizeof(float));
  owner_ = weight.plugin;
  ATLAS_RETURN_IF_ERROR(abi::call(fmt::format("plugin '{}', product", weight.plugin),
                                  builder_.quant(weight.plugin).api->plan_linear, &problem,
                                  &sink_));
  return add({problem.y, weight.n, weight.n, y.count, y.max_rows, {}}, y);
}

Result<AtlasBufferRef> StepLowering::encoded(const Rows& x, const AtlasLinearNeeds& needed,
                                             const std::string& plugin) {
  const std::string encoding = needed.input_encoding;
  if (encoding.empty()) return x.at;
  // Rows of an encoding may stand in groups: AtlasEncodeProblem promises memory for whole ones.
  const uint64_t bytes = uint64_t{kernels::wgmma_places(x.max_rows)} * needed.encoded_row_bytes;
  std::string name = "encoded " + encoding, other = name + " in turn";
  // What was encoded before a fork all branches read; what they encode themselves is their own.
  for (std::string* one : {&name, &other}) {
    if (branches_.open && encoded_[*one] != x.content) {
      *one += fmt::format(" of branch {}", branches_.number);
    }
  }
  // A product that encodes what it makes still reads its own input there.
  if (encoded_[other] == x.content || (encoded_[name] != x.content && maker_reads(x, name))) {
    name = other;
  }
  const AtlasBufferRef out = workspace(name, bytes);
  std::string& held = encoded_[name];
  if (held == x.content) return out;
  held = x.content;
  if (encoded_where_made(x, needed, out)) return out;
  AtlasEncodeProblem problem{};
  problem.struct_size = sizeof(problem);
  problem.max_rows = x.max_rows;
  problem.platform = builder_.plan.platform.c_str();
  problem.encoding = needed.input_encoding;
  problem.k = x.width;
  problem.x = x.at;
  problem.x_stride = x.stride;
  problem.out = out;
  problem.row_count = x.count;
  owner_ = plugin;
  ATLAS_RETURN_IF_ERROR(abi::call(fmt::format("plugin '{}', encode", plugin),
                                  builder_.quant(plugin).api->plan_encode, &problem, &sink_));
  return out;
}

bool StepLowering::maker_reads(const Rows& x, const std::string& buffer) const {
  const auto maker = makers_.find(x.content);
  if (maker == makers_.end()) return false;
  const Record& record = step_.records[maker->second.record];
  return std::any_of(record.relocations.begin(), record.relocations.end(),
                     [&](const AtlasRelocation& one) {
                       return one.access == ATLAS_ACCESS_READS &&
                              builder_.plan.buffers[one.target.buffer].name == buffer;
                     });
}

Status StepLowering::encode(const Rows& x, const std::vector<PlacedWeight>& placed) {
  for (const PlacedWeight& one : placed) {
    const Weight& weight = builder_.plan.weights[one.weight];
    ATLAS_ASSIGN_OR_RETURN(const AtlasLinearNeeds needed, needs(weight, x.max_rows));
    ATLAS_ASSIGN_OR_RETURN([[maybe_unused]] const AtlasBufferRef place,
                           encoded(x, needed, weight.plugin));
  }
  return {};
}

bool StepLowering::encoded_where_made(const Rows& x, const AtlasLinearNeeds& needed,
                                      const AtlasBufferRef& out) {
  const auto maker = makers_.find(x.content);
  if (!gpu_ || maker == makers_.end()) return false;
  const std::string_view encoding = needed.input_encoding;
  const bool wgmma = encoding == kernels::kWgmmaEncoding || encoding == kernels::kHalfWgmmaEncoding;
  const bool f16 = encoding == kernels::kHalfEncoding || encoding == kernels::kHalfWgmmaEncoding;
  if (!wgmma && !f16 && encoding != kernels::kBf16Encoding) return false;
  const uint64_t row_bytes =
      wgmma ? kernels::wgmma_row_bytes(x.width) : kernels::bf16_row_bytes(x.width);
  if (needed.encoded_row_bytes != row_bytes) return false;
  const size_t record = maker->second.record;
  const uint32_t offset = f16 ? maker->second.encoded_f16 : maker->second.encoded;
  if (offset == 0) return false;
  for (size_t i = record; i < step_.records.size(); ++i) {
    for (const AtlasRelocation& used : step_.records[i].relocations) {
      if (used.target.buffer == out.buffer) return false;
      // Of each kind of numbers it writes them in one encoding only.
      if (i == record && used.param_offset == offset) return false;
    }
  }
  AtlasBufferRef to = out;
  if (wgmma) to.offset += 1;  // an odd address says so
  step_.records[record].relocations.push_back({offset, ATLAS_ACCESS_WRITES, to});
  return true;
}

// ---- Mixture of experts
// --------------------------------------------------------------------------

Status StepLowering::lower(const MoeOp& op) {
  const Rows x = rows(op.x);
  const uint64_t hidden = x.width, inner = op.intermediate, shared = op.shared_intermediate;
  if (op.top == 0 || op.top > op.experts || op.top > kernels::kMaxExpertsPerToken) {
    return unimplemented("{} of {} experts a token: from 1 to {} are run", op.top, op.experts,
                         kernels::kMaxExpertsPerToken);
  }
  const uint32_t places = x.max_rows * op.top;
  ExpertRows experts;
  experts.max_rows = places;
  experts.chosen = workspace("experts chosen", places * sizeof(uint32_t));
  experts.weights = workspace("experts weights", places * sizeof(float));
  experts.offsets = workspace("experts offsets", (uint64_t{op.experts} + 1) * sizeof(uint32_t));
  experts.source = workspace("experts source", places * sizeof(uint32_t));
  experts.place = workspace("experts place", places * sizeof(uint32_t));
  experts.count = experts.offsets;
  experts.count.offset += uint64_t{op.experts} * sizeof(uint32_t);
  const auto expert_rows = [&](const char* what, uint64_t width) {
    return Rows{workspace(fmt::format("experts {}", what), places * width * sizeof(float)),
                width,
                width,
                experts.count,
                places,
                fmt::format("{} {}", what, name_)};
  };
  const auto token_rows = [&](const char* what, uint64_t width) {
    if (shared == 0) return Rows{};
    return Rows{workspace(fmt::format("shared {}", what), x.max_rows * width * sizeof(float)),
                width,
                width,
                x.count,
                x.max_rows,
                fmt::format("shared {} {}", what, name_)};
  };
  const bool gated = shared != 0 && op.shared_gate;
  const std::string module = op.module + ".experts", one = op.module + ".shared_expert";
  const Rows gate_up = expert_rows("gate_up", 2 * inner), inputs = expert_rows("gated", inner);
  const Rows out = expert_rows("out", hidden);
  const Rows shared_gate_up = token_rows("gate_up", 2 * shared),
             shared_gated = token_rows("gated", shared);
  const Rows shared_out = token_rows("out", hidden);
  ATLAS_ASSIGN_OR_RETURN(const auto router, builder_.place(router_weights(op, hidden)));
  const bool normed = op.normed_rows;
  ATLAS_ASSIGN_OR_RETURN(const auto up,
                         builder_.place_experts(module, op.experts,
                                                {{"gate_proj", inner, hidden, normed},
                                                 {"up_proj", inner, hidden, normed}}));
  std::vector<PlacedWeight> shared_up, shared_down;
  if (shared != 0) {
    ATLAS_ASSIGN_OR_RETURN(shared_up, builder_.place({{one + ".gate_proj", shared, hidden, normed},
                                                      {one + ".up_proj", shared, hidden, normed}}));
    ATLAS_ASSIGN_OR_RETURN(shared_down, builder_.place({{one + ".down_proj", hidden, shared}}));
  }
  ATLAS_ASSIGN_OR_RETURN(
      const auto down, builder_.place_experts(module, op.experts, {{"down_proj", hidden, inner}}));
  const auto shared_expert = [&]() -> Status {
    if (shared == 0) return {};
    ATLAS_RETURN_IF_ERROR(products(x, shared_up, shared_gate_up, false));
    ATLAS_RETURN_IF_ERROR(silu_mul(shared_gate_up, shared_gated));
    return products(shared_gated, shared_down, shared_out, false);
  };

  // The shared expert waits for no choice. In its own branch it runs beside the others; else what
  // reads x comes first, so that x is encoded once.
  const bool forks = shared != 0 && can_fork();
  if (forks) {
    ATLAS_RETURN_IF_ERROR(encode(x, router));
    for (const PlacedWeight& reads : up) {
      const std::string& plugin = builder_.plan.weights[reads.weight].plugin;
      ATLAS_ASSIGN_OR_RETURN(
          const AtlasLinearNeeds needed,
          grouped_needs(grouped_problem(x, reads, experts.source, experts, op.experts, gate_up),
                        plugin));
      ATLAS_ASSIGN_OR_RETURN([[maybe_unused]] const AtlasBufferRef place,
                             encoded(x, needed, plugin));
    }
    ATLAS_RETURN_IF_ERROR(encode(x, shared_up));
    fork();
  }
  Rows shared_gate;
  ATLAS_RETURN_IF_ERROR(route(op, x, router, experts, gated ? &shared_gate : nullptr));
  ATLAS_RETURN_IF_ERROR(grouped(x, up, experts.source, experts, op.experts, gate_up));
  if (!forks) ATLAS_RETURN_IF_ERROR(shared_expert());
  ATLAS_RETURN_IF_ERROR(silu_mul(gate_up, inputs));
  ATLAS_RETURN_IF_ERROR(grouped(inputs, down, kNowhere, experts, op.experts, out));
  if (forks) {
    branch();
    ATLAS_RETURN_IF_ERROR(shared_expert());
    join();
  }

  sdk::Launch<kernels::CombineExpertsParams> combine("combine_experts",
                                                     kernels::kCombineExpertsParamsDigest);
  combine.point(&combine.params.x, out.at);
  combine.point(&combine.params.weights, experts.weights);
  combine.point(&combine.params.place, experts.place);
  if (shared != 0) combine.point(&combine.params.shared, shared_out.at);
  if (gated) combine.point(&combine.params.shared_gate, shared_gate.at);
  combine.point(&combine.params.y, at(op.y));
  combine.params.x_stride = out.stride;
  combine.params.shared_stride = shared_out.stride;
  combine.params.shared_gate_stride = shared_gate.stride;
  combine.params.y_stride = op.y.stride;
  combine.params.top = op.top;
  combine.params.n = static_cast<uint32_t>(hidden);
  ATLAS_RETURN_IF_ERROR(submit_rows(combine, x));
  written(op.y);
  return {};
}

/// The router, and the shared expert's gate behind it, so that one product can give both.
std::vector<WeightName> StepLowering::router_weights(const MoeOp& op, uint64_t hidden) {
  std::vector<WeightName> weights = {{op.module + ".gate", op.experts, hidden, op.normed_rows}};
  if (op.shared_intermediate != 0 && op.shared_gate) {
    weights.push_back({op.module + ".shared_expert_gate", 1, hidden, op.normed_rows});
  }
  return weights;
}

/// Chooses each row's experts and sorts the rows by them. The column of the shared expert's gate
/// stands behind the router's logits.
Status StepLowering::route(const MoeOp& op, const Rows& x, const std::vector<PlacedWeight>& router,
                           const ExpertRows& experts, Rows* shared_gate) {
  // With the gate's column rows begin where 128 bytes do.
  const uint64_t width = op.experts + (shared_gate != nullptr ? 1 : 0);
  const uint64_t stride = shared_gate != nullptr ? align_up(width, 32) : width;
  const Rows logits{workspace("experts logits", x.max_rows * stride * sizeof(float)),
                    width,
                    stride,
                    x.count,
                    x.max_rows,
                    {}};
  if (shared_gate != nullptr) {
    *shared_gate = logits;
    shared_gate->at.offset += op.experts * sizeof(float);
    shared_gate->width = 1;
  }
  ATLAS_RETURN_IF_ERROR(products(x, router, logits, false));

  const auto fill_route = [&](auto& launch, kernels::RouteParams& params) {
    launch.point(&params.logits, logits.at);
    launch.point(&params.chosen, experts.chosen);
    launch.point(&params.weights, experts.weights);
    launch.point(&params.row_count, x.count);
    params.logits_stride = logits.stride;
    params.experts = op.experts;
    params.top = op.top;
    params.normalize = op.normalize ? 1 : 0;
  };
  const auto fill_group = [&](auto& launch, kernels::GroupExpertsParams& params) {
    launch.point(&params.chosen, experts.chosen);
    launch.point(&params.offsets, experts.offsets);
    launch.point(&params.source, experts.source);
    launch.point(&params.place, experts.place);
    launch.point(&params.row_count, x.count);
    params.experts = op.experts;
    params.top = op.top;
  };
  if (gpu_ && kernels::chooses_together(op.experts, op.top, x.max_rows)) {
    sdk::Launch<kernels::ChooseExpertsParams> both("choose_experts",
                                                   kernels::kChooseExpertsParamsDigest);
    fill_route(both, both.params.route);
    fill_group(both, both.params.group);
    return submit(both, 1);
  }
  sdk::Launch<kernels::RouteParams> route("route", kernels::kRouteParamsDigest);
  fill_route(route, route.params);
  ATLAS_RETURN_IF_ERROR(submit(route, x.max_rows));
  sdk::Launch<kernels::GroupExpertsParams> group("group_experts",
                                                 kernels::kGroupExpertsParamsDigest);
  fill_group(group, group.params);
  return submit(group, 1);
}

AtlasGroupedProblem StepLowering::grouped_problem(const Rows& x, const PlacedWeight& placed,
                                                  AtlasBufferRef source, const ExpertRows& experts,
                                                  uint32_t count, const Rows& y) const {
  const Weight& weight = builder_.plan.weights[placed.weight];
  AtlasGroupedProblem problem{};
  problem.struct_size = sizeof(problem);
  problem.max_rows = experts.max_rows;
  problem.platform = builder_.plan.platform.c_str();
  problem.format = weight.format.c_str();
  problem.n = weight.n;
  problem.k = weight.k;
  problem.experts = count;
  problem.expert_bytes = weight.expert_bytes;
  problem.x_stride = x.stride;
  problem.y_stride = y.stride;
  problem.y = y.at;
  problem.y.offset += placed.y_first * sizeof(float);
  problem.y.row_bytes = 0;
  problem.weight = {weight.buffer, 0, 0};
  problem.offsets = experts.offsets;
  problem.source = source;
  problem.workspace = kNowhere;
  return problem;
}

Result<AtlasLinearNeeds> StepLowering::grouped_needs(const AtlasGroupedProblem& problem,
                                                     const std::string& plugin) {
  AtlasLinearNeeds needed{};
  needed.struct_size = sizeof(needed);
  ATLAS_RETURN_IF_ERROR(abi::call(fmt::format("plugin '{}', products of experts", plugin),
                                  builder_.quant(plugin).api->grouped_needs, &problem, &needed));
  return needed;
}

Status StepLowering::grouped(const Rows& x, const std::vector<PlacedWeight>& placed,
                             AtlasBufferRef source, const ExpertRows& experts, uint32_t count,
                             const Rows& y) {
  for (size_t i = 0; i < placed.size();) {
    const Weight& weight = builder_.plan.weights[placed[i].weight];
    std::vector<AtlasGroupedProblem> problems;
    const auto add_problem = [&](const PlacedWeight& one) {
      problems.push_back(grouped_problem(x, one, source, experts, count, y));
    };
    add_problem(placed[i++]);
    ATLAS_ASSIGN_OR_RETURN(AtlasLinearNeeds needed, grouped_needs(problems.front(), weight.plugin));
    for (; i < placed.size() && problems.size() < needed.most_beside; ++i) {
      const Weight& next = builder_.plan.weights[placed[i].weight];
      if (next.plugin != weight.plugin || next.format != weight.format) break;
      add_problem(placed[i]);
    }
    for (size_t p = 0; p + 1 < problems.size(); ++p) problems[p].beside = &problems[p + 1];
    ATLAS_ASSIGN_OR_RETURN(needed, grouped_needs(problems.front(), weight.plugin));
    AtlasGroupedProblem& problem = problems.front();
    ATLAS_ASSIGN_OR_RETURN(problem.x, encoded(x, needed, weight.plugin));
    if (needed.workspace_bytes != 0) {
      problem.workspace = scratch("workspace", needed.workspace_bytes);
    }
    owner_ = weight.plugin;
    ATLAS_RETURN_IF_ERROR(abi::call(fmt::format("plugin '{}', products of experts", weight.plugin),
                                    builder_.quant(weight.plugin).api->plan_grouped, &problem,
                                    &sink_));
  }
  return {};
}

}  // namespace atlas::plan
