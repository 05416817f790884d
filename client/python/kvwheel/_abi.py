# SPDX-License-Identifier: Apache-2.0
"""The structs and constants of kvwheel.h and kernels.h, written again for ctypes.

tests/python/test_abi.py compares every size, offset and constant of this file with what
the C compiler makes of the headers, in both directions.
"""

import ctypes as c

# kvwheel.h -----------------------------------------------------------------------------

EOVERRUN = 4096
EDIVERGED = 4097
EINCOMPLETE = 4098
EGONE = 4099
ELAYOUT = 4100

TYPES = {"f32": 1, "bf16": 2, "f16": 3, "i8": 4, "u8": 5, "u32": 6}
POLICIES = {"roll": 1, "refuse": 2}
WINDOW_KINDS = {"chunk": 1, "row": 2}
POSITIONS = {"absolute": 1, "window": 2}
LIFETIMES = {"job": 0, "ttl": 1, "keep": 2}
PLACEMENTS = {"spread": 0, "follow": 1, "interleave": 2, "node": 3, "map": 4}
PAGES = {"none": 0, "thp": 1, "2m": 2}
PIN_POLICIES = {"wait": 1, "answer": 2, "revoke": 3}
PIECE_CLASSES = {"sink": 1, "kept": 2, "past": 3, "current": 4}

SPEC_GROUPS_MAX = 16
SPEC_PLANES_MAX = 8
SPEC_LAYERS_MAX = 1024
VIEW_PIECES_MAX = 64
VIEWS_MAX = 64

READER = 0xFFFFFFFF
ALL_RANKS = 0xFFFFFFFF
NO_TIMEOUT = 0xFFFFFFFFFFFFFFFF
WHOLE = 0xFFFFFFFFFFFFFFFF

COMMITTED = 0
STAGED = 1
UNPINNED = 2

VERSION_MAJOR = 0
VERSION_MINOR = 1


class kvw_spec_plane(c.Structure):
    _fields_ = [
        ("name", c.c_char * 16),
        ("type", c.c_uint32),
        ("elems", c.c_uint32),
        ("is_rotated", c.c_uint32),
    ]


class kvw_spec_group(c.Structure):
    _fields_ = [
        ("name", c.c_char * 16),
        ("n_layers", c.c_uint32),
        ("n_heads", c.c_uint32),
        ("window_rows", c.c_uint64),
        ("sink_rows", c.c_uint64),
        ("chunk_rows_max", c.c_uint64),
        ("keep_rows", c.c_uint64),
        ("slack_chunks", c.c_uint32),
        ("policy", c.c_uint32),
        ("window_kind", c.c_uint32),
        ("positions", c.c_uint32),
        ("is_contiguous", c.c_uint32),
        ("n_planes", c.c_uint32),
        ("plane", kvw_spec_plane * SPEC_PLANES_MAX),
    ]


class kvw_spec(c.Structure):
    _fields_ = [
        ("size", c.c_uint32),
        ("name", c.c_char * 64),
        ("n_lanes", c.c_uint32),
        ("n_ranks", c.c_uint32),
        ("head_parts", c.c_uint32),
        ("layer_parts", c.c_uint32),
        ("lane_parts", c.c_uint32),
        ("row_parts", c.c_uint32),
        ("row_block", c.c_uint32),
        ("lifetime", c.c_uint32),
        ("ttl_seconds", c.c_uint64),
        ("mode", c.c_uint32),
        ("placement", c.c_uint32),
        ("n_groups", c.c_uint32),
        ("n_layers", c.c_uint32),
        ("has_checksums", c.c_uint32),
        ("pages", c.c_uint32),
        ("node", c.c_uint16 * 64),
        ("group", kvw_spec_group * SPEC_GROUPS_MAX),
        ("model_layer", c.c_uint16 * SPEC_LAYERS_MAX),
    ]


class kvw_spec_bytes(c.Structure):
    _fields_ = [
        ("total_bytes", c.c_uint64),
        ("data_bytes", c.c_uint64),
        ("control_bytes", c.c_uint64),
        ("padding_bytes", c.c_uint64),
        ("group_bytes", c.c_uint64 * SPEC_GROUPS_MAX),
        ("layer_bytes", c.c_uint64 * SPEC_GROUPS_MAX),
        ("rank_bytes", c.c_uint64 * 64),
    ]


class kvw_attach_options(c.Structure):
    _fields_ = [
        ("size", c.c_uint32),
        ("pin_policy", c.c_uint32),
        ("timeout_ns", c.c_uint64),
        ("spin_us", c.c_uint32),
        ("owner_timeout_ns", c.c_uint64),
    ]


class kvw_part(c.Structure):
    _fields_ = [
        ("head_first", c.c_uint32),
        ("n_heads", c.c_uint32),
        ("layer_first", c.c_uint32),
        ("n_layers", c.c_uint32),
        ("lane_first", c.c_uint32),
        ("n_lanes", c.c_uint32),
    ]


class kvw_layer(c.Structure):
    _fields_ = [("index", c.c_uint32)]


class kvw_item(c.Structure):
    _fields_ = [
        ("group", c.c_uint32),
        ("has_epoch", c.c_uint32),
        ("row", c.c_uint64),
        ("n", c.c_uint64),
        ("epoch", c.c_uint64),
    ]


class kvw_begun(c.Structure):
    _fields_ = [
        ("row", c.c_uint64),
        ("n", c.c_uint64),
        ("position", c.c_uint64),
        ("evict_first", c.c_uint64),
        ("evict_end", c.c_uint64),
    ]


class kvw_source(c.Structure):
    _fields_ = [
        ("data", c.c_void_p),
        ("row_bytes", c.c_int64),
        ("head_bytes", c.c_int64),
    ]


class kvw_piece(c.Structure):
    _fields_ = [
        ("row", c.c_uint64),
        ("position", c.c_uint64),
        ("n_rows", c.c_uint32),
        ("slot", c.c_uint32),
        ("piece_class", c.c_uint32),
        ("reserved", c.c_uint32),
    ]


class kvw_plane(c.Structure):
    _fields_ = [
        ("base", c.c_void_p),
        ("row_bytes", c.c_uint64),
        ("head_bytes", c.c_uint64),
        ("elems", c.c_uint32),
        ("type", c.c_uint32),
    ]


class kvw_slots(c.Structure):
    _fields_ = [
        ("n_pieces", c.c_uint32),
        ("n_planes", c.c_uint32),
        ("n_heads", c.c_uint32),
        ("head_first", c.c_uint32),
        ("plane", kvw_plane * SPEC_PLANES_MAX),
        ("piece", kvw_piece * VIEW_PIECES_MAX),
    ]


class kvw_view(c.Structure):
    _fields_ = [
        ("step", c.c_uint64),
        ("epoch", c.c_uint64),
        ("generation", c.c_uint64),
        ("n_rows", c.c_uint64),
        ("end_row", c.c_uint64),
        ("window_rows", c.c_uint64),
        ("sink_rows", c.c_uint64),
        ("lane", c.c_uint32),
        ("layer", c.c_uint32),
        ("window_kind", c.c_uint32),
        ("n_pieces", c.c_uint32),
        ("n_planes", c.c_uint32),
        ("head_first", c.c_uint32),
        ("n_heads", c.c_uint32),
        ("hold", c.c_uint32),
        ("hold_rewinds", c.c_uint64),
        ("hold_low", c.c_uint64),
        ("hold_staged", c.c_uint64),
        ("hold_passes", c.c_uint64),
        ("ranks", c.c_uint64),
        ("plane", kvw_plane * SPEC_PLANES_MAX),
        ("piece", kvw_piece * VIEW_PIECES_MAX),
    ]


class kvw_group_state(c.Structure):
    _fields_ = [
        ("rows", c.c_uint64),
        ("evicted", c.c_uint64),
        ("generation", c.c_uint64),
        ("epoch", c.c_uint64),
        ("first", c.c_uint64),
        ("open", c.c_uint64),
    ]


class kvw_lane_state(c.Structure):
    _fields_ = [
        ("step", c.c_uint64),
        ("era", c.c_uint64),
        ("n_groups", c.c_uint32),
        ("is_owned", c.c_uint32),
        ("group", kvw_group_state * SPEC_GROUPS_MAX),
    ]


class kvw_damage(c.Structure):
    _fields_ = [
        ("kind", c.c_uint32),
        ("rank", c.c_uint32),
        ("lane", c.c_uint32),
        ("layer", c.c_uint32),
        ("plane", c.c_uint32),
        ("head", c.c_uint32),
        ("row", c.c_uint64),
        ("n_rows", c.c_uint64),
        ("text", c.c_char_p),
    ]


class kvw_verified(c.Structure):
    _fields_ = [
        ("n_damages", c.c_uint64),
        ("n_boards", c.c_uint64),
        ("n_rows", c.c_uint64),
        ("n_rows_damaged", c.c_uint64),
        ("n_rows_skipped", c.c_uint64),
        ("n_boards_skipped", c.c_uint64),
        ("has_checksums", c.c_uint32),
        ("reserved", c.c_uint32),
    ]


kvw_damage_fn = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(kvw_damage))
kvw_progress_fn = c.CFUNCTYPE(None, c.c_void_p, c.c_uint64, c.c_uint64)

# kernels.h -----------------------------------------------------------------------------

HEAD_DIM_MAX = 1024

ROPE_AXES_MAX = 3

NUMS = {"f32": 1, "bf16": 2, "f16": 3, "i8": 4}
ROPE_LAYOUTS = {"half_split": 0, "interleaved": 1}
ATTN_MASKS = {"none": 0, "causal": 1, "block_causal": 2}
ATTN_ALWAYS = 1
ATTN_RAW_KEYS = 2


class kvw_rope_table(c.Structure):
    _fields_ = [
        ("cos", c.c_void_p),
        ("sin", c.c_void_p),
        ("row_stride", c.c_ssize_t),
        ("n_positions", c.c_uint64),
        ("n_pairs", c.c_uint32),
        ("layout", c.c_uint32),
    ]


class kvw_rope_spec(c.Structure):
    _fields_ = [
        ("cos", c.c_void_p),
        ("sin", c.c_void_p),
        ("row_stride", c.c_ssize_t),
        ("n_positions", c.c_uint64),
        ("n_pairs", c.c_uint32),
        ("theta", c.c_double),
        ("inv_freq", c.c_void_p),
        ("position_scale", c.c_double),
        ("magnitude", c.c_double),
    ]


class kvw_rope_grid(c.Structure):
    _fields_ = [
        ("cos", c.c_void_p),
        ("sin", c.c_void_p),
        ("row_stride", c.c_ssize_t),
        ("n_axes", c.c_uint32),
        ("size", c.c_uint64 * ROPE_AXES_MAX),
        ("begin", c.c_double * ROPE_AXES_MAX),
        ("n_pairs", c.c_uint32 * ROPE_AXES_MAX),
        ("theta", c.c_double),
    ]


class kvw_rope_args(c.Structure):
    _fields_ = [
        ("rows", c.c_void_p),
        ("row_stride", c.c_ssize_t),
        ("head_stride", c.c_ssize_t),
        ("n_rows", c.c_uint64),
        ("n_heads", c.c_uint32),
        ("type", c.c_uint32),
        ("table", c.c_void_p),
        ("position", c.c_int64),
        ("position_step", c.c_int64),
    ]


class kvw_attn_piece(c.Structure):
    _fields_ = [
        ("k", c.c_void_p),
        ("v", c.c_void_p),
        ("k_row_stride", c.c_ssize_t),
        ("k_head_stride", c.c_ssize_t),
        ("v_row_stride", c.c_ssize_t),
        ("v_head_stride", c.c_ssize_t),
        ("n_rows", c.c_uint64),
        ("first_row", c.c_uint64),
        ("pos_base", c.c_uint64),
        ("bias", c.c_float),
        ("flags", c.c_uint32),
        ("k_scales", c.c_void_p),
        ("v_scales", c.c_void_p),
        ("k_scales_row_stride", c.c_ssize_t),
        ("k_scales_head_stride", c.c_ssize_t),
        ("v_scales_row_stride", c.c_ssize_t),
        ("v_scales_head_stride", c.c_ssize_t),
    ]


class kvw_attn_args(c.Structure):
    _fields_ = [
        ("q", c.c_void_p),
        ("q_row_stride", c.c_ssize_t),
        ("q_head_stride", c.c_ssize_t),
        ("n_q", c.c_uint32),
        ("n_q_heads", c.c_uint32),
        ("n_kv_heads", c.c_uint32),
        ("head_dim_k", c.c_uint32),
        ("head_dim_v", c.c_uint32),
        ("kv_type", c.c_uint32),
        ("pieces", c.c_void_p),
        ("n_pieces", c.c_uint32),
        ("mask", c.c_uint32),
        ("q_first_row", c.c_uint64),
        ("window_rows", c.c_uint64),
        ("sink_rows", c.c_uint64),
        ("block_rows", c.c_uint64),
        ("block_first_row", c.c_uint64),
        ("scale", c.c_float),
        ("softcap", c.c_float),
        ("sink_logits", c.c_void_p),
        ("rope", c.c_void_p),
        ("out", c.c_void_p),
        ("out_row_stride", c.c_ssize_t),
        ("out_head_stride", c.c_ssize_t),
        ("lse", c.c_void_p),
        ("lse_row_stride", c.c_ssize_t),
        ("lse_head_stride", c.c_ssize_t),
        ("n_threads", c.c_uint32),
    ]


class kvw_linear_state(c.Structure):
    _fields_ = [
        ("vk", c.c_void_p),
        ("k_sum", c.c_void_p),
        ("vk_head_stride", c.c_ssize_t),
        ("vk_row_stride", c.c_ssize_t),
        ("k_sum_head_stride", c.c_ssize_t),
    ]


class kvw_linear_update_args(c.Structure):
    _fields_ = [
        ("k", c.c_void_p),
        ("k_rotated", c.c_void_p),
        ("v", c.c_void_p),
        ("k_row_stride", c.c_ssize_t),
        ("k_head_stride", c.c_ssize_t),
        ("v_row_stride", c.c_ssize_t),
        ("v_head_stride", c.c_ssize_t),
        ("n_rows", c.c_uint64),
        ("n_heads", c.c_uint32),
        ("head_dim_k", c.c_uint32),
        ("head_dim_v", c.c_uint32),
        ("is_added", c.c_uint32),
        ("state", kvw_linear_state),
    ]


class kvw_linear_use_args(c.Structure):
    _fields_ = [
        ("q", c.c_void_p),
        ("q_rotated", c.c_void_p),
        ("q_row_stride", c.c_ssize_t),
        ("q_head_stride", c.c_ssize_t),
        ("states", c.c_void_p),
        ("n_states", c.c_uint32),
        ("n_q", c.c_uint32),
        ("n_heads", c.c_uint32),
        ("head_dim_k", c.c_uint32),
        ("head_dim_v", c.c_uint32),
        ("eps", c.c_float),
        ("out", c.c_void_p),
        ("out_row_stride", c.c_ssize_t),
        ("out_head_stride", c.c_ssize_t),
    ]


class kvw_convert_args(c.Structure):
    _fields_ = [
        ("src", c.c_void_p),
        ("src_row_stride", c.c_ssize_t),
        ("src_head_stride", c.c_ssize_t),
        ("dst", c.c_void_p),
        ("dst_row_stride", c.c_ssize_t),
        ("dst_head_stride", c.c_ssize_t),
        ("n_rows", c.c_uint64),
        ("n_heads", c.c_uint32),
        ("n_elems", c.c_uint32),
        ("src_type", c.c_uint32),
        ("dst_type", c.c_uint32),
        ("scales", c.c_void_p),
        ("scales_row_stride", c.c_ssize_t),
        ("scales_head_stride", c.c_ssize_t),
    ]
