"""The field's augmentation pipelines in one word, as their originals have them.

    transform = fastload.pipelines.dinov2(local_crops_number=6)
    loader = fastload.create_loader("images", transform=transform, batch_size=64, shuffle=True)

Each is a file with the source and the version that it follows. Parameters have the names and the
defaults of the original. docs/pipelines.md shows both side by side, and says what differs.
"""

from __future__ import annotations

from fastload.arguments import checks_names
from fastload.pipelines.of_byol import byol
from fastload.pipelines.of_deit import deit3
from fastload.pipelines.of_detectron2 import detectron2, detectron2_eval, detectron2_lsj
from fastload.pipelines.of_detr import detr, detr_eval
from fastload.pipelines.of_diffusers import diffusers_sdxl, diffusers_text_to_image
from fastload.pipelines.of_dino import dino
from fastload.pipelines.of_dinov2 import dinov2
from fastload.pipelines.of_fixmatch import fixmatch, fixmatch_labeled
from fastload.pipelines.of_hrnet import hrnet, hrnet_batches, hrnet_eval
from fastload.pipelines.of_ibot import ibot
from fastload.pipelines.of_ijepa import ijepa, ijepa_masks
from fastload.pipelines.of_mae import mae
from fastload.pipelines.of_mask2former import mask2former_instance, mask2former_panoptic
from fastload.pipelines.of_mmsegmentation import mmsegmentation, mmsegmentation_batches
from fastload.pipelines.of_moco_v3 import moco_v3
from fastload.pipelines.of_nnunet import nnunet_2d, nnunet_2d_batches
from fastload.pipelines.of_open_clip import open_clip
from fastload.pipelines.of_rfdetr import rfdetr, rfdetr_batches, rfdetr_eval
from fastload.pipelines.of_rtdetrv2 import rtdetrv2, rtdetrv2_batches, rtdetrv2_eval
from fastload.pipelines.of_simclr import simclr
from fastload.pipelines.of_smp import smp_camvid, smp_camvid_eval
from fastload.pipelines.of_swav import swav
from fastload.pipelines.of_timm import timm
from fastload.pipelines.of_torchvision import (
    torchvision_classification,
    torchvision_classification_eval,
    torchvision_classification_mixing,
)
from fastload.pipelines.of_torchvision_detection import (
    torchvision_detection,
    torchvision_detection_eval,
)
from fastload.pipelines.of_torchvision_segmentation import (
    torchvision_segmentation,
    torchvision_segmentation_eval,
)
from fastload.pipelines.of_vitpose import vitpose, vitpose_batches, vitpose_eval
from fastload.pipelines.of_yolo import yolo
from fastload.pipelines.of_yolov7 import yolov7
from fastload.pipelines.of_yolox import yolox, yolox_batches
from fastload.pipelines.progressive import efficientnetv2_sizes, ffcv_sizes

__all__ = [
    "byol",
    "deit3",
    "detectron2",
    "detectron2_eval",
    "detectron2_lsj",
    "detr",
    "detr_eval",
    "diffusers_sdxl",
    "diffusers_text_to_image",
    "dino",
    "dinov2",
    "efficientnetv2_sizes",
    "ffcv_sizes",
    "fixmatch",
    "fixmatch_labeled",
    "hrnet",
    "hrnet_batches",
    "hrnet_eval",
    "ibot",
    "ijepa",
    "ijepa_masks",
    "mae",
    "mask2former_instance",
    "mask2former_panoptic",
    "mmsegmentation",
    "mmsegmentation_batches",
    "moco_v3",
    "nnunet_2d",
    "nnunet_2d_batches",
    "open_clip",
    "rfdetr",
    "rfdetr_batches",
    "rfdetr_eval",
    "rtdetrv2",
    "rtdetrv2_batches",
    "rtdetrv2_eval",
    "simclr",
    "smp_camvid",
    "smp_camvid_eval",
    "swav",
    "timm",
    "torchvision_classification",
    "torchvision_classification_eval",
    "torchvision_classification_mixing",
    "torchvision_detection",
    "torchvision_detection_eval",
    "torchvision_segmentation",
    "torchvision_segmentation_eval",
    "vitpose",
    "vitpose_batches",
    "vitpose_eval",
    "yolo",
    "yolov7",
    "yolox",
    "yolox_batches",
]

for _name in __all__:
    _function = globals()[_name]
    _of = f" {_function.__module__} says which version it follows."
    globals()[_name] = checks_names(beside=_of)(_function)
