/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the compiler makes of the public headers, line by line, for test_abi.py, which
 * compares it with client/python/kvwheel/_abi.py:
 *
 *     struct NAME SIZE
 *     field STRUCT NAME OFFSET SIZE
 *     constant NAME VALUE
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

#include <kvwheel/kernels.h>
#include <kvwheel/kvwheel.h>

#define STRUCT(name) printf("struct %s %zu\n", #name, sizeof(struct name))
#define FIELD(name, field)                                                       \
    printf("field %s %s %zu %zu\n", #name, #field, offsetof(struct name, field), \
           sizeof(((struct name *)0)->field))
#define CONSTANT(name) printf("constant %s %" PRIu64 "\n", #name, (uint64_t)(name))

static void print_spec(void)
{
    STRUCT(kvw_spec_plane);
    FIELD(kvw_spec_plane, name);
    FIELD(kvw_spec_plane, type);
    FIELD(kvw_spec_plane, elems);
    FIELD(kvw_spec_plane, is_rotated);
    STRUCT(kvw_spec_group);
    FIELD(kvw_spec_group, name);
    FIELD(kvw_spec_group, n_layers);
    FIELD(kvw_spec_group, n_heads);
    FIELD(kvw_spec_group, window_rows);
    FIELD(kvw_spec_group, sink_rows);
    FIELD(kvw_spec_group, chunk_rows_max);
    FIELD(kvw_spec_group, keep_rows);
    FIELD(kvw_spec_group, slack_chunks);
    FIELD(kvw_spec_group, policy);
    FIELD(kvw_spec_group, window_kind);
    FIELD(kvw_spec_group, positions);
    FIELD(kvw_spec_group, is_contiguous);
    FIELD(kvw_spec_group, n_planes);
    FIELD(kvw_spec_group, plane);
    STRUCT(kvw_spec);
    FIELD(kvw_spec, size);
    FIELD(kvw_spec, name);
    FIELD(kvw_spec, n_lanes);
    FIELD(kvw_spec, n_ranks);
    FIELD(kvw_spec, head_parts);
    FIELD(kvw_spec, layer_parts);
    FIELD(kvw_spec, lane_parts);
    FIELD(kvw_spec, row_parts);
    FIELD(kvw_spec, row_block);
    FIELD(kvw_spec, lifetime);
    FIELD(kvw_spec, ttl_seconds);
    FIELD(kvw_spec, mode);
    FIELD(kvw_spec, placement);
    FIELD(kvw_spec, n_groups);
    FIELD(kvw_spec, n_layers);
    FIELD(kvw_spec, has_checksums);
    FIELD(kvw_spec, pages);
    FIELD(kvw_spec, node);
    FIELD(kvw_spec, group);
    FIELD(kvw_spec, model_layer);
    STRUCT(kvw_spec_bytes);
    FIELD(kvw_spec_bytes, total_bytes);
    FIELD(kvw_spec_bytes, data_bytes);
    FIELD(kvw_spec_bytes, control_bytes);
    FIELD(kvw_spec_bytes, padding_bytes);
    FIELD(kvw_spec_bytes, group_bytes);
    FIELD(kvw_spec_bytes, layer_bytes);
    FIELD(kvw_spec_bytes, rank_bytes);
}

static void print_attachment(void)
{
    STRUCT(kvw_attach_options);
    FIELD(kvw_attach_options, size);
    FIELD(kvw_attach_options, pin_policy);
    FIELD(kvw_attach_options, timeout_ns);
    FIELD(kvw_attach_options, spin_us);
    FIELD(kvw_attach_options, owner_timeout_ns);
    STRUCT(kvw_part);
    FIELD(kvw_part, head_first);
    FIELD(kvw_part, n_heads);
    FIELD(kvw_part, layer_first);
    FIELD(kvw_part, n_layers);
    FIELD(kvw_part, lane_first);
    FIELD(kvw_part, n_lanes);
    STRUCT(kvw_layer);
    FIELD(kvw_layer, index);
}

static void print_steps(void)
{
    STRUCT(kvw_item);
    FIELD(kvw_item, group);
    FIELD(kvw_item, has_epoch);
    FIELD(kvw_item, row);
    FIELD(kvw_item, n);
    FIELD(kvw_item, epoch);
    STRUCT(kvw_begun);
    FIELD(kvw_begun, row);
    FIELD(kvw_begun, n);
    FIELD(kvw_begun, position);
    FIELD(kvw_begun, evict_first);
    FIELD(kvw_begun, evict_end);
    STRUCT(kvw_source);
    FIELD(kvw_source, data);
    FIELD(kvw_source, row_bytes);
    FIELD(kvw_source, head_bytes);
}

static void print_views(void)
{
    STRUCT(kvw_piece);
    FIELD(kvw_piece, row);
    FIELD(kvw_piece, position);
    FIELD(kvw_piece, n_rows);
    FIELD(kvw_piece, slot);
    FIELD(kvw_piece, piece_class);
    FIELD(kvw_piece, reserved);
    STRUCT(kvw_plane);
    FIELD(kvw_plane, base);
    FIELD(kvw_plane, row_bytes);
    FIELD(kvw_plane, head_bytes);
    FIELD(kvw_plane, elems);
    FIELD(kvw_plane, type);
    STRUCT(kvw_slots);
    FIELD(kvw_slots, n_pieces);
    FIELD(kvw_slots, n_planes);
    FIELD(kvw_slots, n_heads);
    FIELD(kvw_slots, head_first);
    FIELD(kvw_slots, plane);
    FIELD(kvw_slots, piece);
    STRUCT(kvw_view);
    FIELD(kvw_view, step);
    FIELD(kvw_view, epoch);
    FIELD(kvw_view, generation);
    FIELD(kvw_view, n_rows);
    FIELD(kvw_view, end_row);
    FIELD(kvw_view, window_rows);
    FIELD(kvw_view, sink_rows);
    FIELD(kvw_view, lane);
    FIELD(kvw_view, layer);
    FIELD(kvw_view, window_kind);
    FIELD(kvw_view, n_pieces);
    FIELD(kvw_view, n_planes);
    FIELD(kvw_view, head_first);
    FIELD(kvw_view, n_heads);
    FIELD(kvw_view, hold);
    FIELD(kvw_view, hold_rewinds);
    FIELD(kvw_view, hold_low);
    FIELD(kvw_view, hold_staged);
    FIELD(kvw_view, hold_passes);
    FIELD(kvw_view, ranks);
    FIELD(kvw_view, plane);
    FIELD(kvw_view, piece);
}

static void print_states(void)
{
    STRUCT(kvw_group_state);
    FIELD(kvw_group_state, rows);
    FIELD(kvw_group_state, evicted);
    FIELD(kvw_group_state, generation);
    FIELD(kvw_group_state, epoch);
    FIELD(kvw_group_state, first);
    FIELD(kvw_group_state, open);
    STRUCT(kvw_lane_state);
    FIELD(kvw_lane_state, step);
    FIELD(kvw_lane_state, era);
    FIELD(kvw_lane_state, n_groups);
    FIELD(kvw_lane_state, is_owned);
    FIELD(kvw_lane_state, group);
    STRUCT(kvw_damage);
    FIELD(kvw_damage, kind);
    FIELD(kvw_damage, rank);
    FIELD(kvw_damage, lane);
    FIELD(kvw_damage, layer);
    FIELD(kvw_damage, plane);
    FIELD(kvw_damage, head);
    FIELD(kvw_damage, row);
    FIELD(kvw_damage, n_rows);
    FIELD(kvw_damage, text);
    STRUCT(kvw_verified);
    FIELD(kvw_verified, n_damages);
    FIELD(kvw_verified, n_boards);
    FIELD(kvw_verified, n_rows);
    FIELD(kvw_verified, n_rows_damaged);
    FIELD(kvw_verified, n_rows_skipped);
    FIELD(kvw_verified, n_boards_skipped);
    FIELD(kvw_verified, has_checksums);
    FIELD(kvw_verified, reserved);
}

static void print_rotation(void)
{
    STRUCT(kvw_rope_table);
    FIELD(kvw_rope_table, cos);
    FIELD(kvw_rope_table, sin);
    FIELD(kvw_rope_table, row_stride);
    FIELD(kvw_rope_table, n_positions);
    FIELD(kvw_rope_table, n_pairs);
    FIELD(kvw_rope_table, layout);
    STRUCT(kvw_rope_spec);
    FIELD(kvw_rope_spec, cos);
    FIELD(kvw_rope_spec, sin);
    FIELD(kvw_rope_spec, row_stride);
    FIELD(kvw_rope_spec, n_positions);
    FIELD(kvw_rope_spec, n_pairs);
    FIELD(kvw_rope_spec, theta);
    FIELD(kvw_rope_spec, inv_freq);
    FIELD(kvw_rope_spec, position_scale);
    FIELD(kvw_rope_spec, magnitude);
    STRUCT(kvw_rope_grid);
    FIELD(kvw_rope_grid, cos);
    FIELD(kvw_rope_grid, sin);
    FIELD(kvw_rope_grid, row_stride);
    FIELD(kvw_rope_grid, n_axes);
    FIELD(kvw_rope_grid, size);
    FIELD(kvw_rope_grid, begin);
    FIELD(kvw_rope_grid, n_pairs);
    FIELD(kvw_rope_grid, theta);
    STRUCT(kvw_rope_args);
    FIELD(kvw_rope_args, rows);
    FIELD(kvw_rope_args, row_stride);
    FIELD(kvw_rope_args, head_stride);
    FIELD(kvw_rope_args, n_rows);
    FIELD(kvw_rope_args, n_heads);
    FIELD(kvw_rope_args, type);
    FIELD(kvw_rope_args, table);
    FIELD(kvw_rope_args, position);
    FIELD(kvw_rope_args, position_step);
}

static void print_attention(void)
{
    STRUCT(kvw_attn_piece);
    FIELD(kvw_attn_piece, k);
    FIELD(kvw_attn_piece, v);
    FIELD(kvw_attn_piece, k_row_stride);
    FIELD(kvw_attn_piece, k_head_stride);
    FIELD(kvw_attn_piece, v_row_stride);
    FIELD(kvw_attn_piece, v_head_stride);
    FIELD(kvw_attn_piece, n_rows);
    FIELD(kvw_attn_piece, first_row);
    FIELD(kvw_attn_piece, pos_base);
    FIELD(kvw_attn_piece, bias);
    FIELD(kvw_attn_piece, flags);
    FIELD(kvw_attn_piece, k_scales);
    FIELD(kvw_attn_piece, v_scales);
    FIELD(kvw_attn_piece, k_scales_row_stride);
    FIELD(kvw_attn_piece, k_scales_head_stride);
    FIELD(kvw_attn_piece, v_scales_row_stride);
    FIELD(kvw_attn_piece, v_scales_head_stride);
    STRUCT(kvw_attn_args);
    FIELD(kvw_attn_args, q);
    FIELD(kvw_attn_args, q_row_stride);
    FIELD(kvw_attn_args, q_head_stride);
    FIELD(kvw_attn_args, n_q);
    FIELD(kvw_attn_args, n_q_heads);
    FIELD(kvw_attn_args, n_kv_heads);
    FIELD(kvw_attn_args, head_dim_k);
    FIELD(kvw_attn_args, head_dim_v);
    FIELD(kvw_attn_args, kv_type);
    FIELD(kvw_attn_args, pieces);
    FIELD(kvw_attn_args, n_pieces);
    FIELD(kvw_attn_args, mask);
    FIELD(kvw_attn_args, q_first_row);
    FIELD(kvw_attn_args, window_rows);
    FIELD(kvw_attn_args, sink_rows);
    FIELD(kvw_attn_args, block_rows);
    FIELD(kvw_attn_args, block_first_row);
    FIELD(kvw_attn_args, scale);
    FIELD(kvw_attn_args, softcap);
    FIELD(kvw_attn_args, sink_logits);
    FIELD(kvw_attn_args, rope);
    FIELD(kvw_attn_args, out);
    FIELD(kvw_attn_args, out_row_stride);
    FIELD(kvw_attn_args, out_head_stride);
    FIELD(kvw_attn_args, lse);
    FIELD(kvw_attn_args, lse_row_stride);
    FIELD(kvw_attn_args, lse_head_stride);
    FIELD(kvw_attn_args, n_threads);
}

static void print_linear(void)
{
    STRUCT(kvw_linear_state);
    FIELD(kvw_linear_state, vk);
    FIELD(kvw_linear_state, k_sum);
    FIELD(kvw_linear_state, vk_head_stride);
    FIELD(kvw_linear_state, vk_row_stride);
    FIELD(kvw_linear_state, k_sum_head_stride);
    STRUCT(kvw_linear_update_args);
    FIELD(kvw_linear_update_args, k);
    FIELD(kvw_linear_update_args, k_rotated);
    FIELD(kvw_linear_update_args, v);
    FIELD(kvw_linear_update_args, k_row_stride);
    FIELD(kvw_linear_update_args, k_head_stride);
    FIELD(kvw_linear_update_args, v_row_stride);
    FIELD(kvw_linear_update_args, v_head_stride);
    FIELD(kvw_linear_update_args, n_rows);
    FIELD(kvw_linear_update_args, n_heads);
    FIELD(kvw_linear_update_args, head_dim_k);
    FIELD(kvw_linear_update_args, head_dim_v);
    FIELD(kvw_linear_update_args, is_added);
    FIELD(kvw_linear_update_args, state);
    STRUCT(kvw_linear_use_args);
    FIELD(kvw_linear_use_args, q);
    FIELD(kvw_linear_use_args, q_rotated);
    FIELD(kvw_linear_use_args, q_row_stride);
    FIELD(kvw_linear_use_args, q_head_stride);
    FIELD(kvw_linear_use_args, states);
    FIELD(kvw_linear_use_args, n_states);
    FIELD(kvw_linear_use_args, n_q);
    FIELD(kvw_linear_use_args, n_heads);
    FIELD(kvw_linear_use_args, head_dim_k);
    FIELD(kvw_linear_use_args, head_dim_v);
    FIELD(kvw_linear_use_args, eps);
    FIELD(kvw_linear_use_args, out);
    FIELD(kvw_linear_use_args, out_row_stride);
    FIELD(kvw_linear_use_args, out_head_stride);
}

static void print_conversion(void)
{
    STRUCT(kvw_convert_args);
    FIELD(kvw_convert_args, src);
    FIELD(kvw_convert_args, src_row_stride);
    FIELD(kvw_convert_args, src_head_stride);
    FIELD(kvw_convert_args, dst);
    FIELD(kvw_convert_args, dst_row_stride);
    FIELD(kvw_convert_args, dst_head_stride);
    FIELD(kvw_convert_args, n_rows);
    FIELD(kvw_convert_args, n_heads);
    FIELD(kvw_convert_args, n_elems);
    FIELD(kvw_convert_args, src_type);
    FIELD(kvw_convert_args, dst_type);
    FIELD(kvw_convert_args, scales);
    FIELD(kvw_convert_args, scales_row_stride);
    FIELD(kvw_convert_args, scales_head_stride);
}

static void print_constants(void)
{
    CONSTANT(KVW_VERSION_MAJOR);
    CONSTANT(KVW_VERSION_MINOR);
    CONSTANT(KVW_EOVERRUN);
    CONSTANT(KVW_EDIVERGED);
    CONSTANT(KVW_EINCOMPLETE);
    CONSTANT(KVW_EGONE);
    CONSTANT(KVW_ELAYOUT);
    CONSTANT(KVW_SPEC_GROUPS_MAX);
    CONSTANT(KVW_SPEC_PLANES_MAX);
    CONSTANT(KVW_SPEC_LAYERS_MAX);
    CONSTANT(KVW_VIEW_PIECES_MAX);
    CONSTANT(KVW_VIEWS_MAX);
    CONSTANT(KVW_READER);
    CONSTANT(KVW_ALL_RANKS);
    CONSTANT(KVW_NO_TIMEOUT);
    CONSTANT(KVW_WHOLE);
    CONSTANT(KVW_COMMITTED);
    CONSTANT(KVW_STAGED);
    CONSTANT(KVW_UNPINNED);
    CONSTANT(KVW_HEAD_DIM_MAX);
    CONSTANT(KVW_ROPE_AXES_MAX);
    CONSTANT(KVW_ATTN_ALWAYS);
    CONSTANT(KVW_ATTN_RAW_KEYS);
}

int main(void)
{
    print_spec();
    print_attachment();
    print_steps();
    print_views();
    print_states();
    print_rotation();
    print_attention();
    print_linear();
    print_conversion();
    print_constants();
    return 0;
}
