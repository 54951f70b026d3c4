"""Which test file holds the tests of which module: without the module's main function, that file
fails. `python scripts/mutants.py --mirror` tries it."""

from __future__ import annotations

import difflib
import sys

TESTS = {
    "clients/test_assume_plain": "loader.compared sources.plain",
    "clients/test_feedback_samplers": "sampler.feedback",
    "clients/test_huggingface_streams": "loader.streams sources.huggingface_streams",
    "clients/test_handover": "compat.handover",
    "clients/test_passes_for_a_dataloader": "compat.dataloader",
    "clients/test_ray_pack": "tools.pack.ray_cluster",
    "clients/test_samplers": "sampler.users",
    "clients/test_states": "sources.inspection",
    "clients/test_timm": "compat.timm recipe.of_timm",
    "clients/test_timm_transforms": "pipelines.of_timm",
    "clients/test_torchdata": "compat.torchdata",
    "clients/test_transformers": "compat.transformers",
    "clients/test_users_code": "known_code loader.known_functions",
    "test_adoption": "loader.adoption",
    "test_arguments": "arguments",
    "test_backends_padded": "backends.pixels_padded",
    "test_backends_first_alone": "backends.first_alone",
    "test_backends_maker": "backends.maker",
    "test_backends_rows": "backends.images backends.moved backends.rows",
    "test_backends_submitted": "backends.submitted",
    "test_bad_input": "loader.config loader.substitution",
    "test_balanced": "sampler.balanced sampler.costs",
    "test_bench_decode": "cli.bench tools.bench.decode tools.bench.decoders tools.bench.guarded "
    "tools.bench.passes tools.bench.pillow",
    "test_bench_io": "tools.bench.io",
    "test_bench_loader": "tools.bench.loader tools.bench.loader_report tools.measure.images "
    "tools.measure.loaders",
    "test_boxes_of_masks": "backends.around geometry.clipped recipe.boxes_of_masks "
    "recipe.padding_mask",
    "test_broadcast": "loader.broadcast",
    "test_buckets": "decode.sizes recipe.sized sampler.buckets",
    "test_budgets": "loader.packing sampler.best_fit sampler.budgets sampler.cuts sampler.packed",
    "test_cache_backend": "backends.cache cache.reading cache.resident",
    "test_cache_build": "cache.build cache.manifest cache.progress cache.samples "
    "cache.writing cli.cache locks",
    "test_cache_parts": "cache.parts render.peer_memory",
    "test_cache_resident_files": "backends.pixels_resident cache.resident_files",
    "test_cache_filler": "cache.choice cache.filler",
    "test_cache_stamps": "cache.stamps",
    "test_cli": "cli cli.app cli.commands cli.doctor terminal tools.demo.tour",
    "test_collate": "loader.collate loader.objects",
    "test_colour_on_host": "loader.colour_place recipe.by_core render.gamma render.host_colour "
    "render.steps",
    "test_columns": "recipe.columns sources.boxes sources.columns sources.kinds",
    "test_comparing": "loader.comparing",
    "test_crop_by_classes": "backends.looked pipelines.of_mmsegmentation recipe.crop_by_classes "
    "recipe.photometric_bytes",
    "test_cursor": "loader.states",
    "test_dali_backend": "backends.dali backends.dali_graph",
    "test_decode": "decode.image",
    "test_decode_header": "decode.header",
    "test_decode_on": "backends.pixels_planned loader.decoding render.jpeg_share "
    "render.pending_jpegs",
    "test_decode_register": "decode.libraries",
    "test_device_stage": "device host_memory render.transfer",
    "test_demo_objects": "tools.demo.objects",
    "test_distribution": "distribution",
    "test_draws": "draws",
    "test_ending": "ending",
    "test_environment": "cli.environment",
    "test_exif": "exif",
    "test_feed": "loader.feed",
    "test_files": "files",
    "test_floats_by_core": "recipe.floats_by_core render.floats",
    "test_following": "loader.following",
    "test_foreign_batches": "backends.objects backends.streamed",
    "test_from_dataloader": "loader.changes loader.from_dataloader loader.served",
    "test_generators": "generators",
    "test_keypoints": "sources.keypoints",
    "test_loader": "errors fingerprint loader.iterator loader.loader",
    "test_loader_remote": "loader.remote",
    "test_look": "cli.look pipelines.named tools.look.page tools.look.samples",
    "test_machine": "machine",
    "test_masks": "backends.masks sources.masks",
    "test_loaders_alone": "recipe.loaders_alone",
    "test_mix": "recipe.by_source sources.concatenated sources.mixture",
    "test_mixture_order": "sampler.merging sampler.mixture sampler.passes sampler.weights",
    "test_mosaics_in_the_core": "backends.pixels_composite native.composites",
    "test_measure": "tools.measure.clock tools.measure.rounds tools.measure.statistics",
    "test_measure_page": "tools.bench.decode_report tools.measure.charts tools.measure.page "
    "tools.measure.table",
    "test_measure_process": "tools.measure.child tools.measure.process",
    "test_measure_results": "tools.bench.compare tools.measure.results",
    "test_measure_stored": "tools.measure.stored",
    "test_modules": "modules",
    "test_monitor": "tools.monitor.gpu tools.monitor.idle tools.monitor.profiler "
    "tools.monitor.steps tools.monitor.timeline",
    "test_native_pool": "native native.extension native.pool",
    "test_nnunet": "pipelines.of_nnunet recipe.crop_with_foreground recipe.intensities "
    "recipe.turned_and_scaled",
    "test_originals": "originals",
    "test_pack": "cli.pack sources.packed tools.pack.caches tools.pack.contents tools.pack.plan "
    "tools.pack.report tools.pack.run tools.pack.shard tools.pack.target",
    "test_parallel": "compat.parallel sampler.mesh",
    "test_patches": "geometry.patches loader.patches recipe.patches",
    "test_photographs": "tools.measure.photographs",
    "test_pipelines": "pipelines.contrastive pipelines.normalised pipelines.of_byol "
    "pipelines.of_deit pipelines.of_dino pipelines.of_dinov2 pipelines.of_ibot pipelines.of_mae "
    "pipelines.of_moco_v3 pipelines.of_open_clip pipelines.of_simclr pipelines.of_swav "
    "pipelines.of_torchvision",
    "test_pipelines_ijepa": "pipelines.of_ijepa",
    "test_pipelines_detection": "pipelines.of_detectron2 pipelines.of_detr "
    "pipelines.of_mask2former pipelines.of_rfdetr pipelines.of_rtdetrv2 "
    "pipelines.of_torchvision_detection "
    "pipelines.of_smp pipelines.of_torchvision_segmentation pipelines.of_yolo pipelines.of_yolov7 "
    "pipelines.of_yolox",
    "test_pipelines_progressive": "pipelines.progressive",
    "test_pipelines_yolo_tasks": "loader.overlaps recipe.hide_keypoints",
    "test_pipelines_poses": "pipelines.heat_maps pipelines.of_hrnet pipelines.of_vitpose "
    "recipe.top_down sources.by_object",
    "test_pillow_simd": "cli.pillow_simd",
    "test_parquet_images": "loader.row_groups sources.parquet_images sources.parquet_pieces "
    "sources.thrift_compact",
    "test_places": "sources.places",
    "test_prefetcher": "loader.production",
    "test_needs": "backends.needs",
    "test_outputs": "recipe.outputs",
    "test_ragged": "recipe.operation sources.buffers sources.instances "
    "sources.ragged sources.sharing",
    "test_ray_map": "integrations loader.samples",
    "test_recipe_adjust": "recipe.adjust",
    "test_recipe_albumentations": "recipe.albumentations_as_written recipe.albumentations_colour "
    "recipe.albumentations_geometry "
    "recipe.bbox_safe_crop recipe.of_albumentations",
    "test_recipe_albumentations_pixels": "recipe.albumentations_blur render.clahe "
    "render.neighbours",
    "test_recipe_apply": "recipe.random_apply",
    "test_recipe_batch": "recipe.split recipe.erase",
    "test_recipe_batch_colour": "recipe.augment recipe.colour recipe.augmix recipe.hsv "
    "recipe.photometric render.hsv",
    "test_recipe_detection": "recipe.iou_crop recipe.resize_or_crop recipe.scales "
    "recipe.transforms recipe.warps render.warp",
    "test_recipe_distortions": "recipe.distortions",
    "test_recipe_five_crop": "recipe.five_crop",
    "test_recipe_fixmatch": "pipelines.of_fixmatch recipe.fixmatch",
    "test_size_and_crop": "pipelines.of_diffusers recipe.size_and_crop sources.placements",
    "test_recipe_geometry": "geometry.boxes geometry.plan recipe.attributes recipe.crops",
    "test_recipe_composite": "backends.composites backends.pasted recipe.composite",
    "test_recipe_partner": "recipe.partner",
    "test_recipe_separate": "recipe.separate",
    "test_recipe_pillow_augment": "recipe.pillow_augment",
    "test_recipe_lower": "recipe.convert recipe.lower recipe.recipe",
    "test_recipe_mix": "recipe.mix",
    "test_render": "render.host",
    "test_render_device": "geometry.grid render.device",
    "test_render_drawn": "render.drawn render.kernels_drawn",
    "test_render_jpeg": "recipe.jpeg render.jpeg",
    "test_render_noise": "recipe.gaussian_noise render.noise",
    "test_render_by_nvrtc": "render.by_nvrtc render.driver",
    "test_render_fused": "render.by_triton render.fused render.kernels render.kernels_colour",
    "test_render_jpegs_on_device": "render.jpegs_on_device render.nvrtc",
    "test_render_trial": "render.trial",
    "test_sampler": "sampler.bijection sampler.order",
    "test_sampler_blocks": "sampler.block_order sampler.blocks sampler.row_groups",
    "test_sampler_placement": "sampler.placement",
    "test_scales": "sampler.nested sampler.scales",
    "test_seek_index": "cli.index native.seek native.seek_filling",
    "test_selection": "loader.build loader.explained loader.tune",
    "test_sources_ambiguous": "sources.beside",
    "test_sources_arrays": "sources.checked sources.formats.arrays",
    "test_sources_arrays_in_files": "sources.formats.npz sources.formats.stl10 "
    "sources.formats.svhn",
    "test_sources_captions": "sources.formats.captions",
    "test_sources_cifar": "sources.formats.cifar",
    "test_sources_detection": "geometry.points sources.annotation_json sources.annotations "
    "sources.formats.coco sources.formats.voc",
    "test_sources_folders": "sources.folders sources.formats.class_folders "
    "sources.formats.image_folders",
    "test_sources_idx": "sources.formats.idx",
    "test_sources_formats": "sources.formats sources.signs",
    "test_sources_huggingface": "sources.formats.huggingface",
    "test_sources_huggingface_transforms": "sources.huggingface_transforms",
    "test_sources_image_files": "sources.image_files",
    "test_sources_index": "sources.index sources.index_file stores.seen",
    "test_sources_joining": "sources.file_rows sources.joining sources.keyed_tables sources.keys "
    "sources.partner_files sources.partners sources.safetensors_files",
    "test_sources_kitti": "sources.formats.kitti",
    "test_sources_labels_remote": "sources.sizes stores.contents",
    "test_sources_labelme": "sources.formats.labelme",
    "test_sources_listing": "sources.listing",
    "test_sources_lance": "sources.formats.lance",
    "test_sources_layouts": "sources.formats.pairs",
    "test_sources_mds": "sources.formats.mds",
    "test_sources_metadata_lines": "sources.formats.metadata_lines sources.json_values",
    "test_sources_names": "sources.names",
    "test_sources_open": "sources.opening",
    "test_sources_open_images": "sources.formats.open_images",
    "test_sources_pairing": "sources.pairing sources.formats.cityscapes "
    "sources.formats.pairs_beside",
    "test_sources_panoptic": "sources.formats.panoptic",
    "test_sources_parquet": "sources.arrow_table sources.formats.parquet sources.parquet_unpacked",
    "test_sources_records": "decode.lists sources.formats.records sources.image_lists",
    "test_sources_tables": "sources.formats.tables sources.image_tables sources.targets",
    "test_sources_texts": "sources.texts",
    "test_sources_supervision": "sources.formats.supervision_objects",
    "test_sources_tar": "sources.archive sources.archived_folders sources.formats.tar_shards",
    "test_sources_torch": "sources.base sources.datasets sources.given",
    "test_sources_torchvision_objects": "sources.torchvision_objects",
    "test_sources_yolo": "sources.formats.yolo",
    "test_sources_zip": "sources.formats.zip_archives sources.zip_members",
    "test_sources_unchanged": "narrowed decode.deep loader.rules sources.unchanged",
    "test_spans": "spans",
    "test_stores": "stores stores.base stores.filesystems stores.objects stores.urls",
    "test_stores_flight": "stores.flight",
    "test_stores_aws": "stores.aws",
    "test_stores_copies": "sources.copied stores.copies",
    "test_stores_google": "stores.google",
    "test_stores_range_file": "stores.range_file",
    "test_stores_reads": "stores.reads",
    "test_stores_transfers": "stores.addresses stores.azure_signatures "
    "stores.s3_signatures stores.transfers",
    "test_stores_wide": "stores.wide",
    "test_stores_together": "loader.together stores.together",
    "test_stores_threads": "stores.threads",
    "test_sweep": "cli.sweep tools.sweep.advice tools.sweep.grid tools.sweep.report "
    "tools.sweep.reported tools.sweep.run",
    "test_third_party_backend": "backends.base backends.tolerance",
    "test_tier": "checksum stores.tier stores.tier_writer",
    "test_torch_workers": "backends.torch_workers backends.torch_workers_processes "
    "loader.worker_seeds",
    "test_torch_threads": "backends.gathered backends.own_numbers backends.torch_workers_threads",
    "test_train_config": "train.config",
    "test_train_data": "train.data",
    "test_train_distributed": "train.distributed",
    "test_train_engine": "train train.trainer",
    "test_train_first_trials": "train.command",
    "test_train_log": "train.log train.results",
    "test_train_models": "train.models",
    "test_train_optim": "train.components",
    "test_train_resume": "train.checkpoint",
    "test_train_settings": "train.settings",
    "test_train_detection": "train.average_precision train.tasks.detection",
    "test_train_tasks": "train.masks train.tasks train.tasks.base train.tasks.classification "
    "train.tasks.language train.tasks.segmentation",
    "test_train_texts": "train.texts",
    "test_turbojpeg_backend": "backends.pixels backends.pixels_native backends.pixels_python "
    "backends.turbojpeg",
    "test_views": "recipe.views",
    "test_warps_in_the_core": "geometry.cuts native.warps",
    "test_watch": "cli.watch tools.watch.beside tools.watch.record tools.watch.report "
    "tools.watch.run tools.watch.sample tools.watch.verdict",
    "test_weighted": "loader.agreement sampler.weighted",
    "test_whole_images": "recipe.whole_images",
}
"""By test file: the modules of `fastload` whose tests it holds."""

ELSEWHERE = {
    "backends.forked": "what it does is tested with forked children, by the suite of faults",
}
"""Modules without a row, and why."""


def file_of(module: str) -> str:
    """The path of the test file of a module; SystemExit names the nearest where there is none."""
    for file, modules in TESTS.items():
        if module in modules.split():
            return f"tests/{file}.py"
    known = [module for modules in TESTS.values() for module in modules.split()]
    near = ", ".join(difflib.get_close_matches(module, known, 3)) or "tests/mirror.py has them all"
    raise SystemExit(f"MODULE={module}: no such module of fastload, as in loader.config ({near}).")


if __name__ == "__main__":
    print(file_of(sys.argv[1]))
