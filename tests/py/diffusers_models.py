# SPDX-License-Identifier: Apache-2.0
"""Models of diffusers that call its attention dispatcher, as small as they come: random weights, a forward in
milliseconds. Each maker draws from torch's generator, so a seed gives the same model and inputs again."""

import diffusers
import torch
from torch import randn

# ---- Makers: (class, configuration, inputs of the forward) ----

_JOINT = dict(patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
              joint_attention_dim=24, axes_dims_rope=(4, 4, 8))
_VIDEO = dict(patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16,
              freq_dim=32, ffn_dim=24, num_layers=1)
_GRID = dict(in_channels=4, out_channels=4, num_attention_heads=2, patch_size=1)


def _tokens(text=10, image=12, text_width=24, width=4, batch=1):
    return dict(hidden_states=randn(batch, image, width), encoder_hidden_states=randn(batch, text, text_width),
                timestep=torch.full((batch,), 0.7), img_ids=randn(image, 3), txt_ids=randn(text, 3))


def _clip(frames=2, size=6, text=7, width=4, text_width=16):
    return dict(hidden_states=randn(1, width, frames, size, size), encoder_hidden_states=randn(1, text, text_width),
                timestep=torch.tensor([300]))


def flux():
    return "FluxTransformer2DModel", {**_JOINT, "pooled_projection_dim": 8}, {**_tokens(), "pooled_projections": randn(1, 8)}


def flux2():
    inputs = {**_tokens(), "img_ids": randn(1, 12, 4), "txt_ids": randn(1, 10, 4), "guidance": torch.tensor([3.0])}
    return "Flux2Transformer2DModel", {**_JOINT, "axes_dims_rope": (4, 4, 4, 4), "timestep_guidance_channels": 32}, inputs


def chroma():
    config = {**_JOINT, "approximator_num_channels": 8, "approximator_hidden_dim": 16, "approximator_layers": 1}
    mask = torch.ones(1, 22)
    mask[:, 4:10] = 0                           # numbers, as its pipeline makes them: 1 is added, not "attend" (M8)
    return "ChromaTransformer2DModel", config, {**_tokens(), "attention_mask": mask}


def bria():
    config = {**_JOINT, "attention_head_dim": 8, "axes_dims_rope": [0, 4, 4], "pooled_projection_dim": None}
    return "BriaTransformer2DModel", config, _tokens()


def bria_masked():
    name, config, inputs = bria()
    bias = torch.where(torch.rand(1, 1, 22, 22) < 0.8, 0.0, float("-inf"))
    return name, config, {**inputs, "attention_kwargs": {"attention_mask": bias}}


def bria_fibo():
    config = {**_JOINT, "attention_head_dim": 8, "axes_dims_rope": [0, 4, 4], "pooled_projection_dim": None,
              "joint_attention_dim": 32, "text_encoder_dim": 16}
    inputs = _tokens(text_width=32)
    halves = inputs["encoder_hidden_states"].split(16, -1)
    return "BriaFiboTransformer2DModel", config, {**inputs, "text_encoder_layers": list(halves)}


def ovis_image():
    return "OvisImageTransformer2DModel", {**_JOINT, "out_channels": 4}, _tokens()


def longcat_image():
    return "LongCatImageTransformer2DModel", {**_JOINT, "pooled_projection_dim": 8}, _tokens()


def ltx():
    config = dict(in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=8, cross_attention_dim=16,
                  num_layers=1, caption_channels=12)
    mask = torch.arange(6) < torch.tensor([[4], [6]])
    return "LTXVideoTransformer3DModel", config, dict(
        hidden_states=randn(2, 18, 4), encoder_hidden_states=randn(2, 6, 12), timestep=torch.tensor([500.0, 20.0]),
        encoder_attention_mask=mask, num_frames=2, height=3, width=3)


def ltx2():
    config = dict(in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=8, cross_attention_dim=16,
                  audio_in_channels=4, audio_out_channels=4, audio_num_attention_heads=2, audio_attention_head_dim=4,
                  audio_cross_attention_dim=8, num_layers=1, caption_channels=12, rope_double_precision=False)
    mask = torch.arange(6) < torch.tensor([[4], [6]])
    return "LTX2VideoTransformer3DModel", config, dict(
        hidden_states=randn(2, 18, 4), audio_hidden_states=randn(2, 5, 4), encoder_hidden_states=randn(2, 6, 12),
        audio_encoder_hidden_states=randn(2, 6, 12), timestep=torch.tensor([500.0, 20.0]), encoder_attention_mask=mask,
        audio_encoder_attention_mask=mask, num_frames=2, height=3, width=3, audio_num_frames=5)


def wan():
    return "WanTransformer3DModel", {**_VIDEO, "rope_max_seq_len": 32}, _clip()


def wan_image():
    config = {**_VIDEO, "rope_max_seq_len": 32, "image_dim": 16, "added_kv_proj_dim": 24}
    return "WanTransformer3DModel", config, {**_clip(), "encoder_hidden_states_image": randn(1, 5, 16)}


def wan_animate():
    config = {**_VIDEO, "in_channels": 12, "latent_channels": 4, "image_dim": 16, "added_kv_proj_dim": 24,
              "rope_max_seq_len": 32, "motion_encoder_channel_sizes": {"4": 8, "8": 8, "16": 8}, "motion_encoder_size": 16,
              "motion_style_dim": 8, "motion_dim": 4, "motion_encoder_dim": 16, "face_encoder_hidden_dim": 16,
              "face_encoder_num_heads": 2, "inject_face_latents_blocks": 1}
    return "WanAnimateTransformer3DModel", config, {
        **_clip(frames=3, width=12), "encoder_hidden_states_image": randn(1, 5, 16),
        "pose_hidden_states": randn(1, 4, 2, 6, 6), "face_pixel_values": randn(1, 3, 5, 16, 16)}


def chronoedit():
    return "ChronoEditTransformer3DModel", {**_VIDEO, "rope_max_seq_len": 32}, _clip()


def skyreels_v2():
    return "SkyReelsV2Transformer3DModel", {**_VIDEO, "rope_max_seq_len": 32}, _clip()


def skyreels_v2_blocks():
    name, config, inputs = skyreels_v2()
    return name, {**config, "num_frame_per_block": 2}, {**inputs, "hidden_states": randn(1, 4, 4, 6, 6)}


def helios():
    config = {**_VIDEO, "rope_dim": (4, 4, 4)}
    one = torch.ones
    return "HeliosTransformer3DModel", config, {
        **_clip(size=8), "indices_hidden_states": one(1, 2), "indices_latents_history_short": one(1, 1),
        "indices_latents_history_mid": one(1, 2), "indices_latents_history_long": one(1, 4),
        "latents_history_short": randn(1, 4, 1, 8, 8), "latents_history_mid": randn(1, 4, 2, 8, 8),
        "latents_history_long": randn(1, 4, 4, 8, 8)}


_JOY = dict(patch_size=[1, 2, 2], in_channels=8, hidden_size=32, num_attention_heads=2, text_dim=16, num_layers=1,
            rope_dim_list=[4, 6, 6])


def joyimage():
    return "JoyImageEditTransformer3DModel", _JOY, dict(
        hidden_states=randn(1, 8, 1, 6, 6), encoder_hidden_states=randn(1, 7, 16), timestep=torch.tensor([1.0]))


def joyimage_edit_plus():
    mask = torch.arange(7) < torch.tensor([[5], [7]])
    return "JoyImageEditPlusTransformer3DModel", _JOY, dict(
        hidden_states=randn(2, 5, 8, 1, 2, 2), encoder_hidden_states=randn(2, 7, 16), timestep=torch.tensor([1.0, 0.4]),
        encoder_hidden_states_mask=mask, shape_list=[[(1, 2, 2), (1, 1, 1)], [(1, 1, 2), (1, 1, 2)]])


def motif_video():
    config = dict(in_channels=9, out_channels=4, num_attention_heads=2, attention_head_dim=12, num_layers=1,
                  num_single_layers=1, patch_size=1, text_embed_dim=16, image_embed_dim=4, rope_axes_dim=(4, 4, 4),
                  enable_text_cross_attention_dual=True, enable_text_cross_attention_single=True)
    mask = torch.arange(7)[None] < 5
    return "MotifVideoTransformer3DModel", config, {**_clip(width=9, size=3), "encoder_attention_mask": mask}


def ernie_image():
    config = dict(hidden_size=32, num_attention_heads=2, num_layers=1, ffn_hidden_size=24, in_channels=8, out_channels=8,
                  text_in_dim=12, rope_axes_dim=(8, 4, 4))
    return "ErnieImageTransformer2DModel", config, dict(
        hidden_states=randn(2, 8, 4, 4), timestep=torch.tensor([1.0, 0.4]), text_bth=randn(2, 6, 12),
        text_lens=torch.tensor([6, 4]))


def anima():
    config = dict(source_dim=12, target_dim=16, model_dim=24, num_layers=1, num_attention_heads=2, target_vocab_size=40,
                  min_sequence_length=8)
    return "AnimaTextConditioner", config, dict(
        source_hidden_states=randn(2, 6, 12), target_input_ids=torch.randint(0, 40, (2, 8)),
        target_attention_mask=(torch.arange(8) < torch.tensor([[8], [5]])).long(),
        source_attention_mask=(torch.arange(6) < torch.tensor([[6], [3]])).long())


def qwen_image():
    config = dict(patch_size=2, in_channels=16, out_channels=4, num_layers=1, attention_head_dim=16, num_attention_heads=2,
                  joint_attention_dim=12, axes_dims_rope=(8, 4, 4))
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]]).bool()        # padding in the middle of the joint keys
    return "QwenImageTransformer2DModel", config, dict(
        hidden_states=randn(2, 12, 16), encoder_hidden_states=randn(2, 6, 12), encoder_hidden_states_mask=mask,
        timestep=torch.tensor([0.7, 0.2]), img_shapes=[[(1, 3, 4)], [(1, 3, 4)]])


def hunyuan_video():
    config = {**_GRID, "attention_head_dim": 10, "num_layers": 1, "num_single_layers": 1, "num_refiner_layers": 1,
              "text_embed_dim": 12, "pooled_projection_dim": 8, "rope_axes_dim": (2, 4, 4)}
    return "HunyuanVideoTransformer3DModel", config, dict(
        hidden_states=randn(1, 4, 1, 4, 4), encoder_hidden_states=randn(1, 6, 12), timestep=torch.tensor([300]),
        encoder_attention_mask=torch.arange(6)[None] < 4, pooled_projections=randn(1, 8), guidance=torch.tensor([3000.0]))


def hunyuan_video15():
    config = {**_GRID, "attention_head_dim": 8, "num_layers": 1, "num_refiner_layers": 1, "mlp_ratio": 2.0,
              "text_embed_dim": 12, "text_embed_2_dim": 8, "image_embed_dim": 10, "rope_axes_dim": (2, 2, 4),
              "target_size": 4}
    return "HunyuanVideo15Transformer3DModel", config, dict(
        hidden_states=randn(1, 4, 1, 4, 4), timestep=torch.tensor([1.0]), encoder_hidden_states=randn(1, 6, 12),
        encoder_attention_mask=(torch.arange(6)[None] < 4).float(), encoder_hidden_states_2=randn(1, 4, 8),
        encoder_attention_mask_2=(torch.arange(4)[None] < 3).float(), image_embeds=torch.zeros(1, 3, 10))


def hunyuan_image():
    config = {**_GRID, "attention_head_dim": 8, "num_layers": 1, "num_single_layers": 1, "num_refiner_layers": 1,
              "patch_size": (1, 1), "text_embed_dim": 12, "text_embed_2_dim": None, "rope_axes_dim": (4, 4)}
    return "HunyuanImageTransformer2DModel", config, dict(
        hidden_states=randn(1, 4, 4, 4), timestep=torch.tensor([300.0]), encoder_hidden_states=randn(1, 6, 12),
        encoder_attention_mask=(torch.arange(6)[None] < 4).long())


def glm_image():
    config = {**_GRID, "patch_size": 2, "num_layers": 1, "attention_head_dim": 8, "text_embed_dim": 12, "time_embed_dim": 16,
              "condition_dim": 8, "prior_vq_quantizer_codebook_size": 20}
    return "GlmImageTransformer2DModel", config, dict(
        hidden_states=randn(1, 4, 6, 6), encoder_hidden_states=randn(1, 5, 12), prior_token_id=torch.randint(0, 20, (1, 9)),
        prior_token_drop=torch.zeros(1, 9, dtype=torch.bool), timestep=torch.tensor([300]),
        target_size=torch.tensor([[6.0, 6.0]]), crop_coords=torch.zeros(1, 2))


def z_image():
    config = dict(all_patch_size=(2,), all_f_patch_size=(1,), in_channels=4, dim=32, n_layers=1, n_refiner_layers=1,
                  n_heads=2, n_kv_heads=2, cap_feat_dim=12, axes_dims=[8, 4, 4], axes_lens=[64, 16, 16])
    return "ZImageTransformer2DModel", config, dict(
        x=[randn(4, 1, 6, 6), randn(4, 1, 4, 6)], cap_feats=[randn(5, 12), randn(3, 12)], t=torch.tensor([0.3, 0.8]))


def sana_video():
    config = dict(in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=12, num_layers=1,
                  num_cross_attention_heads=2, cross_attention_head_dim=12, cross_attention_dim=24, caption_channels=16,
                  sample_size=6, qk_norm="rms_norm_across_heads", rope_max_seq_len=32)
    return "SanaVideoTransformer3DModel", config, {**_clip(), "encoder_attention_mask": (torch.arange(7)[None] < 5).float()}


def prx():
    config = dict(in_channels=4, patch_size=2, context_in_dim=16, hidden_size=32, mlp_ratio=2.0, num_heads=2, depth=1,
                  axes_dim=[8, 8])
    return "PRXTransformer2DModel", config, dict(
        hidden_states=randn(1, 4, 6, 6), encoder_hidden_states=randn(1, 5, 16), timestep=torch.tensor([0.7]),
        attention_mask=torch.arange(5)[None] < 4)


def cosmos():
    config = dict(in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=12, num_layers=1, mlp_ratio=2.0,
                  text_embed_dim=16, adaln_lora_dim=4, max_size=(4, 16, 16), concat_padding_mask=False,
                  extra_pos_embed_type=None)
    return "CosmosTransformer3DModel", config, {**_clip(), "attention_mask": torch.ones(1, 7, dtype=torch.bool)}


def krea2():
    config = dict(in_channels=4, num_layers=1, attention_head_dim=8, num_attention_heads=4, num_key_value_heads=2,
                  intermediate_size=24, timestep_embed_dim=8, text_hidden_dim=16, num_text_layers=2,
                  text_num_attention_heads=2, text_num_key_value_heads=1, text_intermediate_size=16,
                  num_layerwise_text_blocks=1, num_refiner_text_blocks=1, axes_dims_rope=(4, 2, 2))
    return "Krea2Transformer2DModel", config, dict(
        hidden_states=randn(1, 9, 4), encoder_hidden_states=randn(1, 5, 2, 16), timestep=torch.tensor([0.5]),
        position_ids=torch.randint(0, 5, (14, 3)).float(), encoder_attention_mask=torch.arange(5)[None] < 4)


def kandinsky5():
    config = dict(in_visual_dim=4, in_text_dim=12, in_text_dim2=8, time_dim=16, out_visual_dim=4, model_dim=32, ff_dim=24,
                  num_text_blocks=1, num_visual_blocks=1, axes_dims=(4, 6, 6), visual_cond=False)
    return "Kandinsky5Transformer3DModel", config, dict(
        hidden_states=randn(1, 2, 6, 6, 4), encoder_hidden_states=randn(1, 5, 12), timestep=torch.tensor([300.0]),
        pooled_projections=randn(1, 8), visual_rope_pos=[torch.arange(2), torch.arange(3), torch.arange(3)],
        text_rope_pos=torch.arange(5))


# The models of the autocast thread, by the names it gives: torch's RMSNorm on query and key, then the dispatcher.
SEED = {
    "Flux": flux, "Flux2": flux2, "Chroma": chroma, "Bria": bria, "BriaFibo": bria_fibo, "OvisImage": ovis_image,
    "LongCatImage": longcat_image, "LTX": ltx, "LTX2": ltx2, "Wan": wan, "WanAnimate": wan_animate,
    "ChronoEdit": chronoedit, "SkyReelsV2": skyreels_v2, "Helios": helios, "JoyImage": joyimage,
    "JoyImageEditPlus": joyimage_edit_plus, "MotifVideo": motif_video, "ErnieImage": ernie_image, "Anima": anima,
}
OTHERS = {
    "QwenImage": qwen_image, "HunyuanVideo": hunyuan_video, "HunyuanVideo15": hunyuan_video15,
    "HunyuanImage": hunyuan_image, "GlmImage": glm_image, "ZImage": z_image, "SanaVideo": sana_video, "PRX": prx,
    "Cosmos": cosmos, "Krea2": krea2, "Kandinsky5": kandinsky5, "Wan with an image": wan_image,
    "Bria with a mask": bria_masked, "SkyReelsV2 in blocks": skyreels_v2_blocks,
}
ALL = {**SEED, **OTHERS}


# ---- Building and running ----

def make(name, seed=3):
    """(model, inputs). Parameters that start as zero, as of gates and last layers, are drawn, so that every layer counts."""
    torch.manual_seed(seed)
    kind, config, inputs = ALL[name]()
    model = getattr(diffusers, kind)(**config).eval()
    for p in model.parameters():
        if not p.any():
            torch.nn.init.normal_(p, std=0.2)
    return model, inputs


def tensors(result):
    """The tensors of a model's output, one after the other."""
    if isinstance(result, torch.Tensor):
        return [result]
    values = result.values() if hasattr(result, "values") else result
    return [t for value in values if value is not None for t in tensors(value)]


def run(model, inputs):
    with torch.no_grad():
        return torch.cat([t.flatten() for t in tensors(model(**inputs))])
