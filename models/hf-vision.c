#include "models/hf.h"

#include <string.h>

/* A field with one or two equal numbers; returns the number. */
static int64_t vision_square(HfReader *vision, HfKey key)
{
    json_t *value = hf_raw(vision, key);
    json_t *first = json_is_array(value) ? json_array_get(value, 0) : value;
    json_t *second = json_is_array(value) ? json_array_get(value, 1) : value;
    if (!json_is_integer(first) || !json_equal(first, second) || json_integer_value(first) < 1) {
        hf_fail(vision, key, "must be one edge length, or two equal ones");
        return 1;
    }
    return json_integer_value(first);
}

/* As hf_check_sizes() for the language model. */
static void vision_check(HfReader *vision, const Model *model)
{
    static const double width_max = 4194304.0; /* 2^22 */
    double hidden = (double)model->vision_hidden;
    double edge = (double)model->vision_merge;
    double patch = (double)model->vision_patch;
    const struct {
        HfKey key;
        double width;
    } widths[] = {
        {HF_KEY_VT_MERGE, hidden * edge * edge},
        {HF_KEY_VT_PATCH, 3 * patch * patch},
        {HF_KEY_VT_QKV, 3 * (double)model->vision_heads * (double)model->vision_head_dim},
        {HF_KEY_VT_WIDTH, (double)model->vision_width},
        {HF_KEY_VT_POS_HEIGHT, (double)model->vision_pos_size * 1024},
        {HF_KEY_VT_LAYERS, (double)model->vision_layers * 1024},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(widths); i++) {
        if (widths[i].width > width_max) {
            hf_fail(vision, widths[i].key, "is too large for a vision tower");
        }
    }
}

void hf_read_vision(HfReader *vision, Model *model)
{
    const char *projector = hf_string(vision, HF_KEY_VT_PROJECTOR, "?");
    if (strcmp(projector, "patchmergerv2") != 0) {
        hf_fail(vision, HF_KEY_VT_PROJECTOR, "missing operator: projector \"%s\"; only \"patchmergerv2\" is known",
                projector);
        return;
    }
    const char *norm = hf_string(vision, HF_KEY_VT_NORM, "rmsnorm");
    if (strcmp(norm, "rmsnorm") != 0) {
        hf_fail(vision, HF_KEY_VT_NORM, "missing operator: norm \"%s\" of the vision tower; only \"rmsnorm\" is known",
                norm);
    }
    model->vision_layers = hf_need(vision, HF_KEY_VT_LAYERS);
    model->vision_hidden = hf_need(vision, HF_KEY_VT_HIDDEN);
    model->vision_width = hf_need(vision, HF_KEY_VT_WIDTH);
    model->vision_heads = hf_need(vision, HF_KEY_VT_HEADS);
    model->vision_patch = hf_need(vision, HF_KEY_VT_PATCH);
    model->vision_pos_size = hf_need(vision, HF_KEY_VT_POS_HEIGHT);
    model->vision_merge = vision_square(vision, HF_KEY_VT_MERGE);
    int64_t qkv = hf_int(vision, HF_KEY_VT_QKV, model->vision_hidden);
    model->vision_head_dim = qkv / model->vision_heads;
    if (qkv % model->vision_heads != 0 || model->vision_head_dim % 4 != 0) {
        hf_fail(vision, HF_KEY_VT_QKV, "%" G_GINT64_FORMAT " is no multiple of 4 x %" G_GINT64_FORMAT " heads", qkv,
                model->vision_heads);
    }
    if (hf_int(vision, HF_KEY_VT_POS_WIDTH, model->vision_pos_size) != model->vision_pos_size) {
        hf_fail(vision, HF_KEY_VT_POS_WIDTH, "missing operator: a position table that is not square");
    }
    if (hf_int(vision, HF_KEY_VT_MM_HIDDEN, model->vision_hidden) != model->vision_hidden) {
        hf_fail(vision, HF_KEY_VT_MM_HIDDEN, "differs from vt_hidden_size %" G_GINT64_FORMAT, model->vision_hidden);
    }
    if (hf_int(vision, HF_KEY_VT_TEXT_HIDDEN, model->hidden) != model->hidden) {
        hf_fail(vision, HF_KEY_VT_TEXT_HIDDEN,
                "differs from the hidden size %" G_GINT64_FORMAT " of the language model", model->hidden);
    }
    vision_check(vision, model);
    hf_only(vision, HF_KEY_VT_ATTN_BIAS, FALSE, "biases of vision attention");
    hf_only(vision, HF_KEY_VT_LINEAR_BIAS, FALSE, "biases of vision MLPs");
    hf_only(vision, HF_KEY_VT_PATCH_BIAS, FALSE, "bias of the patch embedding");
}
