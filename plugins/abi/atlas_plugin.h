/* The contract between atlasd and its plugins, in plain C.
 *
 * A plugin is a shared object with (1) a descriptor, an ELF note that is read from the file before
 * anything of it is loaded, and (2) one exported symbol, `atlas_plugin_entry`, that answers with a
 * table of functions. Plugins run when a step is planned and when weights are packed; running a
 * step calls no plugin code except the platform's.
 *
 * Rules: every struct that crosses starts with `struct_size` (set by who fills it; a reader looks
 * at no field beyond it); fields are only appended within a major version; nobody throws across;
 * strings that a plugin returns live as long as the plugin; strings that it is given live for the
 * call.
 *
 * Versions: 1.0 first version. 1.1 products of experts (grouped_needs, plan_grouped), weights with
 * a head, attention over a set of rows, with state a slot and anchors, indexers and Gated DeltaNet.
 * 1.2 products beside one another. 1.3 what a launch reads and writes, launches that run beside one
 * another, Gated DeltaNet with the norm and gate of its heads. 1.4 which weights multiply what a
 * norm has made.
 */
#ifndef ATLAS_PLUGIN_H_
#define ATLAS_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATLAS_ABI_MAJOR 1
#define ATLAS_ABI_MINOR 4

/* ---- Codes and errors ---- */

/* The usual sixteen, the same numbers as gRPC's; 0 is success. */
typedef int32_t AtlasCode;
enum {
  ATLAS_OK = 0,
  ATLAS_CANCELLED = 1,
  ATLAS_UNKNOWN = 2,
  ATLAS_INVALID_ARGUMENT = 3,
  ATLAS_DEADLINE_EXCEEDED = 4,
  ATLAS_NOT_FOUND = 5,
  ATLAS_ALREADY_EXISTS = 6,
  ATLAS_PERMISSION_DENIED = 7,
  ATLAS_RESOURCE_EXHAUSTED = 8,
  ATLAS_FAILED_PRECONDITION = 9,
  ATLAS_ABORTED = 10,
  ATLAS_OUT_OF_RANGE = 11,
  ATLAS_UNIMPLEMENTED = 12,
  ATLAS_INTERNAL = 13,
  ATLAS_UNAVAILABLE = 14, /* a platform call that returns this has lost its device for good */
  ATLAS_DATA_LOSS = 15
};

/* Filled by whoever returns a code other than ATLAS_OK. */
typedef struct AtlasError {
  uint32_t struct_size;
  char message[1020];
} AtlasError;

/* ---- Data types ---- */

typedef uint32_t AtlasDType;
enum {
  ATLAS_F32 = 0,
  ATLAS_F16 = 1,
  ATLAS_BF16 = 2,
  ATLAS_I8 = 3,
  ATLAS_U8 = 4,
  ATLAS_I16 = 5,
  ATLAS_I32 = 6,
  ATLAS_I64 = 7,
  ATLAS_F8_E4M3 = 8,
  ATLAS_F8_E5M2 = 9,
  ATLAS_F8_UE8M0 = 10,
  ATLAS_F64 = 11,
  ATLAS_BOOL = 12,
  ATLAS_U16 = 13,
  ATLAS_U32 = 14,
  ATLAS_U64 = 15,
  /* GGUF block types; a tensor's shape counts elements, its bytes count blocks. */
  ATLAS_Q4_0 = 32,
  ATLAS_Q4_1 = 33,
  ATLAS_Q5_0 = 34,
  ATLAS_Q5_1 = 35,
  ATLAS_Q8_0 = 36,
  ATLAS_Q4_K = 37,
  ATLAS_Q5_K = 38,
  ATLAS_Q6_K = 39
};

/* ---- Descriptor: a pointer-free record in the ELF note section `.note.atlas` ---- */

#define ATLAS_NOTE_NAME "Atlas"            /* the note's owner, 6 bytes with its NUL */
#define ATLAS_NOTE_DESCRIPTOR 1u           /* the note's type */
#define ATLAS_DESCRIPTOR_MAGIC 0x44735441u /* "ATsD" */

typedef uint32_t AtlasPluginKind;
enum { ATLAS_KIND_QUANT = 1, ATLAS_KIND_ATTENTION = 2, ATLAS_KIND_PLATFORM = 3 };

/* Fixed part; `platform_count` AtlasDescriptorPlatform and then `kernel_count`
 * AtlasDescriptorKernel follow it without gaps. Strings are NUL-terminated inside their arrays. */
typedef struct AtlasDescriptorHeader {
  uint32_t magic;
  uint32_t total_size; /* header and both arrays, in bytes */
  uint32_t abi_major, abi_minor;
  AtlasPluginKind kind;
  uint32_t platform_count, kernel_count;
  uint32_t reserved; /* 0 */
  char name[32];
  char version[24];
  char licence[40];
  char toolchain[96]; /* compiler, standard library and sanitizers, as text; see sdk/toolchain.h */
} AtlasDescriptorHeader;

typedef struct AtlasDescriptorPlatform {
  char platform[32];
} AtlasDescriptorPlatform;

typedef struct AtlasDescriptorKernel {
  char platform[32];
  char kernel[64];
  uint64_t params_digest; /* of the parameter struct that the plugin fills */
  uint32_t required; /* 1, or 0: optional, then `reason` and `fallback` say why and what runs */
  uint32_t reserved; /* 0 */
  char reason[96];
  char fallback[64]; /* a kernel of the same plugin, launched in its place with the same parameters
                        (so of the same digest), or "core" */
} AtlasDescriptorKernel;

/* ---- Records: what a step is made of ---- */

/* A place in a planned buffer. Buffers get addresses only after the plan has been audited. */
typedef struct AtlasBufferRef {
  uint32_t buffer;    /* id in the plan; ATLAS_NO_BUFFER: absent */
  uint32_t row_bytes; /* 1.3: what is meant of each of the buffer's rows, the first of which begins
                         at its byte 0: so many bytes from `offset` on; 0: anything. A copy of the
                         place keeps it, another offset does not. */
  uint64_t offset;    /* bytes */
} AtlasBufferRef;
#define ATLAS_NO_BUFFER 0xffffffffu

/* 1.3: what a launch does with the place that one of its parameters points to. Of launches that do
 * not say so nothing runs beside another. */
typedef uint32_t AtlasAccess;
enum { ATLAS_ACCESS_UNSAID = 0, ATLAS_ACCESS_READS = 1, ATLAS_ACCESS_WRITES = 2 };

/* The 8 bytes at `param_offset` of the parameters become the address of `target`. */
typedef struct AtlasRelocation {
  uint32_t param_offset;
  AtlasAccess access; /* 1.3; a place that is read and written is written */
  AtlasBufferRef target;
} AtlasRelocation;

/* One launch. On CPU, grid x*y*z is the number of tasks, block is ignored and `shared_bytes` is the
 * scratch of each thread. A bucket bounds the grid, never the work: kernels walk device-side
 * counts. */
typedef struct AtlasRecord {
  uint32_t struct_size;
  uint32_t params_size;
  const char* kernel;
  uint64_t params_digest;
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;
  uint32_t relocation_count;
  const void* params;
  const AtlasRelocation* relocations;
  uint64_t bytes_read; /* weights and state that the launch reads, for reports; 0 if not known */
} AtlasRecord;

/* Collects the records of one operation while planning. */
typedef struct AtlasRecordSink {
  uint32_t struct_size;
  uint32_t reserved;
  void* context;
  AtlasCode (*emit)(void* context, const AtlasRecord* record, AtlasError* error);
} AtlasRecordSink;

/* ---- Quantization plugins ---- */

/* A tensor as it stands in a checkpoint. `dims` are outermost first (rows, then elements of a row).
 */
typedef struct AtlasTensor {
  uint32_t struct_size;
  AtlasDType dtype;
  const char* name;
  uint32_t rank;
  uint32_t reserved;
  uint64_t dims[4];
  uint64_t bytes;
  const void* data; /* NULL while planning */
} AtlasTensor;

/* A weight matrix that a model program wants: y[m,n] = x[m,k] W[n,k]^T, or rows of W by id. */
typedef struct AtlasWeightQuery {
  uint32_t struct_size;
  uint32_t tensor_count;
  const char* platform;
  const char* module;         /* "model.layers.0.self_attn.q_proj" */
  uint64_t n, k;              /* expected; 0: take the checkpoint's */
  const AtlasTensor* tensors; /* the tensors whose names begin with `module` and a dot */
  /* 1.4, for `claim` alone: 1: all rows that products multiply with W are a norm's outputs, or
   * means of these with factors below 1, so that no element is larger than sqrt(width of the norm)
   * times its largest gain. */
  uint32_t normed_rows;
  uint32_t reserved;
} AtlasWeightQuery;

/* What a plugin answers when a module's tensors are in a format of its own. */
typedef struct AtlasWeightClaim {
  uint32_t struct_size;
  uint32_t claimed;  /* 0: not this plugin's format */
  char format[32];   /* "q4_1", "bf16", "exl3_k4" */
  char contract[48]; /* the arithmetic contract of its products (design: the same for all row
                        counts) */
  uint64_t n, k;
  uint32_t row_group;   /* rows of W are packed in groups of this many; a part must be a multiple */
  uint32_t alignment;   /* of the resident bytes */
  uint64_t group_bytes; /* resident bytes of one group of rows */
  double bits_per_weight;
  char layout[48]; /* two generations share packed weights only if this text is equal; "": never */
  /* 1.1 Resident bytes before the first group, for what belongs to the matrix as a whole; a
   * multiple of `alignment`. `pack` from group 0 on writes them first. A weight with a head has
   * products of its own: others are not put behind it to share one. 0: none. */
  uint64_t head_bytes;
} AtlasWeightClaim;

/* Operations that a product may take before and after itself: a closed list that the core owns. */
enum {
  ATLAS_EPILOGUE_NONE = 0,
  ATLAS_EPILOGUE_ADD = 1, /* y[m,n] += product, y float32 */
  /* 1.3: y is the product, whose first `columns` v go on as s / (1 + exp(-s)) of s = scale * v. */
  ATLAS_EPILOGUE_SILU = 2,
  /* 1.3: y[m,columns] is the mean over streams s of streams[m,s,:] / (1 + exp(-v)) of the product's
   * v = [m, s * columns ...]; n is a multiple of `columns`. */
  ATLAS_EPILOGUE_STREAM_MEAN = 3
};

typedef struct AtlasLinearProblem {
  uint32_t struct_size;
  uint32_t max_rows; /* m of the bucket */
  const char* platform;
  const char* format;
  uint64_t n, k;
  uint64_t y_stride; /* elements from one row of y to the next */
  uint32_t epilogue;
  uint32_t reserved;
  AtlasBufferRef x;         /* rows in `input_encoding`, or float32 [m,k] if that is empty */
  AtlasBufferRef y;         /* float32 */
  AtlasBufferRef weight;    /* resident layout, head_bytes + ceil(n / row_group) * group_bytes */
  AtlasBufferRef row_count; /* uint32 on the device: rows in this run, at most max_rows */
  AtlasBufferRef workspace;
  uint64_t x_stride; /* elements from one float32 row of x to the next, without an encoding */
  /* 1.2: another product of the same x, rows, k, format and epilogue, which the plugin may do in
   * the same record; null: none. Of the first problem only x, row_count and workspace are used. */
  const struct AtlasLinearProblem* beside;
  /* 1.3: of the epilogues SILU and STREAM_MEAN, which have no `beside`. */
  uint32_t columns;
  float scale;
  uint64_t streams_stride; /* elements */
  AtlasBufferRef streams;  /* float32 */
} AtlasLinearProblem;

typedef struct AtlasLinearNeeds {
  uint32_t struct_size;
  /* bit e set: epilogue e is done by the plugin's own records; those above ADD are told only to a
   * problem that asks for them */
  uint32_t fused_epilogues;
  uint64_t workspace_bytes;
  char input_encoding[32]; /* "": float32 rows; otherwise the core plans `plan_encode` once per x */
  uint64_t encoded_row_bytes;
  /* 1.2: products, the first included, that a call takes together; 0 or 1: one. */
  uint32_t most_beside;
  /* 1.3: with the problem's epilogue, SILU or STREAM_MEAN: of a pointer in the last record's
   * parameters; where it is not null the columns that it makes are left encoded, too, as
   * AtlasAttentionNeeds says. 0: none */
  uint32_t encoded_offset;
  /* 1.4: the same of a pointer where those columns are left in f16 instead: of "bf16_b32" as
   * "f16_b32", and so on. 0: none */
  uint32_t encoded_f16_offset;
  uint32_t reserved;
} AtlasLinearNeeds;

typedef struct AtlasEncodeProblem {
  uint32_t struct_size;
  uint32_t max_rows;
  const char* platform;
  const char* encoding;
  uint64_t k;
  AtlasBufferRef x; /* float32 [m,k] */
  AtlasBufferRef
      out; /* rows of encoded_row_bytes; memory is there for the next multiple of 32 of m */
  AtlasBufferRef row_count;
  uint64_t x_stride; /* elements */
} AtlasEncodeProblem;

/* y[r,:] = W[ids[r],:] as float32. */
typedef struct AtlasGatherProblem {
  uint32_t struct_size;
  uint32_t max_rows;
  const char* platform;
  const char* format;
  uint64_t n, k;
  uint32_t id_stride; /* bytes from one id (uint32) to the next */
  uint32_t reserved;
  AtlasBufferRef ids;
  AtlasBufferRef y; /* float32 [m,k] */
  AtlasBufferRef weight;
  AtlasBufferRef row_count;
  uint64_t y_stride; /* elements */
} AtlasGatherProblem;

/* Products of experts: row i of y is x[source(i)] W_e^T for the expert e with
 * offsets[e] <= i < offsets[e + 1]. Each row is computed by the contract of plan_linear. */
typedef struct AtlasGroupedProblem {
  uint32_t struct_size;
  uint32_t max_rows; /* of y */
  const char* platform;
  const char* format;
  uint64_t n, k;
  uint32_t experts;
  uint32_t reserved;
  uint64_t expert_bytes;       /* resident bytes from one expert's weight to the next */
  uint64_t x_stride, y_stride; /* elements; x_stride without an encoding */
  AtlasBufferRef x;            /* rows in the input encoding of grouped_needs, or float32 */
  AtlasBufferRef y;            /* float32 */
  AtlasBufferRef weight;       /* of expert 0 */
  AtlasBufferRef offsets;      /* uint32[experts + 1] on the device; the last is the rows of y */
  AtlasBufferRef source;       /* uint32[max_rows] on the device; absent: row i of x */
  AtlasBufferRef workspace;    /* of grouped_needs's workspace_bytes; absent: none are needed */
  /* 1.2: as in AtlasLinearProblem; offsets and source are those of the first, too. */
  const struct AtlasGroupedProblem* beside;
} AtlasGroupedProblem;

/* All calls are thread safe and remember nothing. */
typedef struct AtlasQuantApi {
  uint32_t struct_size;
  uint32_t reserved;
  AtlasCode (*claim)(const AtlasWeightQuery* query, AtlasWeightClaim* claim, AtlasError* error);
  /* Writes row groups [group_begin, group_end) of the resident layout to `out` (host memory). The
   * query's tensors carry their data; rows past n in the last group are filled so as to read as 0.
   */
  AtlasCode (*pack)(const AtlasWeightQuery* query, const AtlasWeightClaim* claim,
                    uint64_t group_begin, uint64_t group_end, void* out, AtlasError* error);
  AtlasCode (*linear_needs)(const AtlasLinearProblem* problem, AtlasLinearNeeds* needs,
                            AtlasError* error);
  AtlasCode (*plan_linear)(const AtlasLinearProblem* problem, const AtlasRecordSink* sink,
                           AtlasError* error);
  AtlasCode (*plan_encode)(const AtlasEncodeProblem* problem, const AtlasRecordSink* sink,
                           AtlasError* error);
  AtlasCode (*plan_gather)(const AtlasGatherProblem* problem, const AtlasRecordSink* sink,
                           AtlasError* error);
  /* 1.1 */
  AtlasCode (*plan_grouped)(const AtlasGroupedProblem* problem, const AtlasRecordSink* sink,
                            AtlasError* error);
  /* As linear_needs; no epilogue is asked for. */
  AtlasCode (*grouped_needs)(const AtlasGroupedProblem* problem, AtlasLinearNeeds* needs,
                             AtlasError* error);
} AtlasQuantApi;

/* ---- Attention plugins ---- */

/* Selects blocks of positions for sparse attention. Queries come normed and rotated; keys come raw,
 * as a block's mean is normed and rotated (at its first position) once the block is complete. */
typedef struct AtlasIndexer {
  uint32_t struct_size;
  uint32_t heads, head_dim; /* one key head */
  uint32_t budget, ratio;   /* budget / ratio blocks of ratio positions are attended to */
  uint32_t rotary_dim;      /* half-split pairs, as in kernel `rope` */
  float epsilon;            /* of the keys' norm */
  float magnitude;          /* of the rotation */
  uint64_t q_stride, k_stride;
  AtlasBufferRef q;                   /* float32 [m, heads, head_dim] */
  AtlasBufferRef k;                   /* float32 [m, head_dim] */
  AtlasBufferRef k_norm;              /* float32 [head_dim], the gain itself */
  AtlasBufferRef inverse_frequencies; /* float32 [rotary_dim / 2] */
} AtlasIndexer;

/* Gated DeltaNet: what `qkv` becomes by convolution and recurrence. Per value head h (which has key
 * head h * key_heads / value_heads), with q and k of unit length and q scaled by key_dim^-1/2:
 * beta = sigmoid(b), g = -exp(a_log) * softplus(a + dt_bias). */
typedef struct AtlasDelta {
  uint32_t struct_size;
  uint32_t key_heads, value_heads, key_dim, value_dim;
  uint32_t conv_kernel;
  uint64_t qkv_stride, b_stride, a_stride;
  AtlasBufferRef qkv;     /* float32 [m, 2 * key_heads * key_dim + value_heads * value_dim], before
                             the convolution: queries, keys, values */
  AtlasBufferRef b, a;    /* float32 [m, value_heads] */
  AtlasBufferRef conv;    /* float32 [channels, conv_kernel], the oldest tap first */
  AtlasBufferRef a_log;   /* float32 [value_heads] */
  AtlasBufferRef dt_bias; /* float32 [value_heads] */
  /* 1.3: 1: a head's values o go on as (o * (1 / sqrt(mean of o^2 + epsilon))) * norm_weight, then
   * times sigmoid(gate) or, with silu, gate * sigmoid(gate). Only where the backend's needs say
   * that it can; the fields behind it count only then. */
  uint32_t norms;
  uint32_t silu;
  float norm_epsilon;
  uint32_t reserved;
  uint64_t gate_stride;
  AtlasBufferRef norm_weight; /* float32 [value_dim] */
  AtlasBufferRef gate;        /* float32 [m, value_heads, value_dim] */
} AtlasDelta;

/* One attention layer of a step. Rows belong to sequences as the control block says. */
typedef struct AtlasAttentionProblem {
  uint32_t struct_size;
  uint32_t max_rows;
  const char* platform;
  const char* backend; /* "gqa" */
  uint32_t heads, kv_heads, head_dim, max_sequences;
  float scale;
  uint32_t max_pages;                                /* pages of one sequence */
  uint64_t q_stride, k_stride, v_stride, out_stride; /* elements from one row to the next */
  AtlasBufferRef q, k, v; /* float32 [m, heads, d]; [m, kv_heads, d] twice; rotated already */
  AtlasBufferRef out;     /* float32 [m, heads, d] */
  AtlasBufferRef control; /* atlas::kernels::StepControl */
  AtlasBufferRef pages;   /* the layer's part of page 0 */
  uint64_t page_stride;   /* bytes from one page to the next */
  AtlasBufferRef workspace;
  /* 1.1 */
  AtlasBufferRef rows; /* atlas::kernels::RowSet in the control block: which rows these are */
  AtlasBufferRef slots, anchors;       /* the layer's part of slot 0 and of anchor 0 */
  uint64_t slot_stride, anchor_stride; /* bytes */
  const AtlasIndexer* indexer;         /* NULL: dense */
  const AtlasDelta* delta;             /* NULL: attention; else heads, q, k and v are absent */
  /* 1.3: rows of one sequence, at most, none of which is at a multiple of the anchors' tokens but
   * the first; 0: any, up to max_rows. */
  uint32_t span_rows;
  uint32_t reserved;
} AtlasAttentionProblem;

typedef struct AtlasAttentionNeeds {
  uint32_t struct_size;
  uint32_t page_tokens;    /* positions in one page; the same for all layers of a backend */
  uint64_t bytes_per_page; /* of one layer */
  uint64_t workspace_bytes;
  char contract[48];
  char state_layout[48]; /* two generations share pages only if this text is equal */
  /* 1.1 State beside the pages. A slot's is indexed by position (modulo some length above the rows
   * of a verify step), so that rows which are not committed are overwritten. An anchor's is the
   * state at a position that is a multiple of anchor_tokens, and is never written again. */
  uint64_t bytes_per_slot, bytes_per_anchor; /* of one layer */
  uint32_t anchor_tokens;                    /* 0: no anchors; all backends that have them agree */
  uint32_t reserved;
  /* 1.3 */
  uint32_t can_norm;       /* 1: takes AtlasDelta's norm and gate */
  uint32_t encoded_offset; /* with them: of a pointer in the last record's parameters; where it is
                              not null the rows of `out` are left, too: in bf16_b32, or, where
                              the address is odd, in bf16_w64 from the byte before on. 0: none */
} AtlasAttentionNeeds;

typedef struct AtlasAttentionApi {
  uint32_t struct_size;
  uint32_t reserved;
  AtlasCode (*needs)(const AtlasAttentionProblem* problem, AtlasAttentionNeeds* needs,
                     AtlasError* error);
  /* Records that write the rows' keys and values into their pages, then attend. */
  AtlasCode (*plan)(const AtlasAttentionProblem* problem, const AtlasRecordSink* sink,
                    AtlasError* error);
} AtlasAttentionApi;

/* ---- Platform plugins ---- */

typedef struct AtlasDevice AtlasDevice;
typedef struct AtlasStream AtlasStream;
typedef struct AtlasEvent AtlasEvent;
typedef struct AtlasModule AtlasModule;
typedef struct AtlasStep AtlasStep;
typedef uint64_t AtlasAddress; /* as kernels see it; for pinned memory also the host's address */
typedef uint64_t AtlasKernel;  /* handle of a kernel in a loaded module; 0: none */

typedef struct AtlasOption {
  const char* key;
  const char* value;
} AtlasOption;

typedef struct AtlasDeviceOptions {
  uint32_t struct_size;
  uint32_t option_count;
  const char* platform;       /* one of the descriptor's */
  const AtlasOption* options; /* `platform.options` of the settings; an unknown key is an error */
} AtlasDeviceOptions;

typedef struct AtlasDeviceInfo {
  uint32_t struct_size;
  uint32_t unified_memory;  /* 1: host and device share one memory, and one ledger */
  char name[96];            /* "AMD EPYC, 2 threads" */
  char architecture[64];    /* "avx3_dl", "sm_121a", "gfx1151" */
  uint64_t memory_bytes;    /* all of it */
  uint64_t available_bytes; /* now */
  uint32_t compute_units;
  uint32_t supports_graphs;
} AtlasDeviceInfo;

typedef uint32_t AtlasMemoryKind;
enum {
  ATLAS_MEMORY_DEVICE = 0, /* the host reaches it by copies only */
  ATLAS_MEMORY_PINNED = 1  /* host memory at one address for host and device */
};

/* One record with its names and places resolved: what a step is built from. */
typedef struct AtlasLaunch {
  uint32_t struct_size;
  uint32_t params_size;
  AtlasKernel kernel;
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;
  uint32_t reserved;
  const void* params; /* relocated; copied by step_create */
  const char* name;   /* operation and kernel, for error messages; copied */
  /* 1.3: the launches that must have ended when this one begins, as places in the list before its
   * own, and with them what those follow; none: the launch before it. So the order of the list is
   * always a valid one, and the only one of an eager step. */
  const uint32_t* after;
  uint32_t after_count;
  uint32_t reserved_after;
} AtlasLaunch;
#define ATLAS_LAUNCH_SIZE_1_0 offsetof(AtlasLaunch, after)

typedef uint32_t AtlasStepMode;
enum { ATLAS_STEP_GRAPH = 0, ATLAS_STEP_EAGER = 1 };

/* Work on one stream runs in the order it was submitted, later than the call that submits it.
 * Calls are made by one thread at a time for a stream; alloc, free and event calls by any thread.
 * After ATLAS_UNAVAILABLE every further call on the device returns it too, and never hangs. */
typedef struct AtlasPlatformApi {
  uint32_t struct_size;
  uint32_t reserved;
  AtlasCode (*device_open)(const AtlasDeviceOptions* options, AtlasDevice** device,
                           AtlasError* error);
  void (*device_close)(AtlasDevice* device);
  AtlasCode (*device_info)(AtlasDevice* device, AtlasDeviceInfo* info, AtlasError* error);

  /* 256-byte aligned; contents are undefined. */
  AtlasCode (*memory_alloc)(AtlasDevice* device, AtlasMemoryKind kind, uint64_t bytes,
                            AtlasAddress* address, AtlasError* error);
  AtlasCode (*memory_free)(AtlasDevice* device, AtlasMemoryKind kind, AtlasAddress address,
                           AtlasError* error);

  AtlasCode (*stream_create)(AtlasDevice* device, AtlasStream** stream, AtlasError* error);
  void (*stream_destroy)(AtlasStream* stream); /* waits for what was submitted */
  AtlasCode (*stream_synchronize)(AtlasStream* stream, AtlasError* error);
  /* Pageable host memory is read or written before the call returns; pinned memory in stream order.
   */
  AtlasCode (*copy_to_device)(AtlasStream* stream, AtlasAddress to, const void* from,
                              uint64_t bytes, AtlasError* error);
  AtlasCode (*copy_to_host)(AtlasStream* stream, void* to, AtlasAddress from, uint64_t bytes,
                            AtlasError* error);
  AtlasCode (*fill)(AtlasStream* stream, AtlasAddress to, uint8_t value, uint64_t bytes,
                    AtlasError* error);

  AtlasCode (*event_create)(AtlasDevice* device, AtlasEvent** event, AtlasError* error);
  void (*event_destroy)(AtlasEvent* event);
  AtlasCode (*event_record)(AtlasEvent* event, AtlasStream* stream, AtlasError* error);
  /* ATLAS_OK once the work before the record is done; ATLAS_DEADLINE_EXCEEDED after `timeout_ns`
   * (0: a query). */
  AtlasCode (*event_wait)(AtlasEvent* event, uint64_t timeout_ns, AtlasError* error);

  /* Loads a kernel pack from its file. A module lives until it is released, or the device is
   * closed.
   */
  AtlasCode (*module_load)(AtlasDevice* device, const char* path, AtlasModule** module,
                           AtlasError* error);
  /* ATLAS_NOT_FOUND if absent or without code for the running architecture. */
  AtlasCode (*module_kernel)(AtlasModule* module, const char* name, AtlasKernel* kernel,
                             AtlasError* error);

  /* Builds a step; nothing runs. step_launch allocates nothing. */
  AtlasCode (*step_create)(AtlasDevice* device, const AtlasLaunch* launches, uint32_t count,
                           AtlasStepMode mode, AtlasStep** step, AtlasError* error);
  void (*step_destroy)(AtlasStep* step); /* not while a launch of it is pending */
  AtlasCode (*step_launch)(AtlasStep* step, AtlasStream* stream, AtlasError* error);

  /* Since ABI 1.3. Once for each module_load that succeeded, when no step with a kernel that this
   * load gave out is left. May wait for what was submitted. */
  void (*module_release)(AtlasModule* module);
} AtlasPlatformApi;

/* ---- Entry ----
 * What host and plugin hand each other when a plugin is loaded. */

typedef uint32_t AtlasLogLevel;
enum { ATLAS_LOG_DEBUG = 0, ATLAS_LOG_INFO = 1, ATLAS_LOG_WARNING = 2, ATLAS_LOG_ERROR = 3 };

/* What the host offers to a plugin; lives as long as the process. */
typedef struct AtlasHost {
  uint32_t struct_size;
  uint32_t abi_major, abi_minor;
  uint32_t reserved;
  void (*log)(AtlasLogLevel level, const char* text);
} AtlasHost;

typedef struct AtlasPlugin {
  uint32_t struct_size;
  uint32_t abi_major, abi_minor;
  AtlasPluginKind kind;
  const AtlasQuantApi* quant; /* the one of `kind`, the others NULL */
  const AtlasAttentionApi* attention;
  const AtlasPlatformApi* platform;
  void (*shutdown)(void); /* after the last call; may be NULL */
} AtlasPlugin;

/* The one exported symbol. On failure NULL, with `error` filled. Every function of the kind's table
 * is there (one that does nothing returns ATLAS_UNIMPLEMENTED). After `shutdown` the entry may be
 * called again, in the same mapping. */
typedef const AtlasPlugin* (*AtlasPluginEntry)(const AtlasHost* host, AtlasError* error);
#define ATLAS_PLUGIN_ENTRY "atlas_plugin_entry"

#ifdef __cplusplus
}
#endif

#endif /* ATLAS_PLUGIN_H_ */
