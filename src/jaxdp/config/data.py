"""Settings of the dataset and of how its examples are prepared."""

from typing import Literal

from jaxdp.config.settings import Settings, setting, settings_group
from jaxdp.config.values import (
    BELOW_2_31,
    MOST_CLASSES,
    MOST_WORKERS,
    NON_NEGATIVE,
    POSITIVE,
    Columns,
    MaskValues,
    at_most,
)
from jaxdp.errors import ConfigError, flag


@settings_group
class DataConfig(Settings):
    """The dataset and how its examples are prepared."""

    dataset: str | None = setting(
        None,
        """dataset to train on: {jaxdp.data.sources}; of TensorFlow Datasets
        {jaxdp.data.sources.tfds:KNOWN}. Arguments follow a colon: cells:sparse, folder:PATH,
        npz:PATH, tfds:NAME, hf:NAME or hf:NAME@REVISION:CONFIG of the Hugging Face hub (default:
        cells for unet, otherwise digits)""",
        metavar="NAME",
        resume="start",
        each_fit=False,
        basic=True,
    )
    data_dir: str | None = setting(
        None,
        """directory of prepared TensorFlow Datasets, or of the tables that hf:NAME prepares
        (default: $TFDS_DATA_DIR or ~/tensorflow_datasets; $HF_DATASETS_CACHE or
        ~/.cache/huggingface/datasets)""",
        metavar="PATH",
        resume="free",
        set_by="data",
        basic=True,
        none="where the libraries of the datasets look",
    )
    train_split: str | None = setting(
        None,
        "examples to train on, e.g. train[:90%] (default: the dataset's own)",
        metavar="SPLIT",
        set_by="data",
        none="the dataset's own",
    )
    test_split: str | None = setting(
        None,
        """test examples, which never determine a choice, e.g. train[90%:] (default: the
        dataset's own)""",
        metavar="SPLIT",
        resume="free",
        set_by="data",
        none="the dataset's own",
    )
    validation: str | None = setting(
        None,
        """examples that determine the best checkpoint: a share of the training set, e.g. 0.1,
        drawn from each class with the seed; a split; or none, with which the last state is the
        result (default: the dataset's own validation split, if it has one)""",
        metavar="SHARE|SPLIT|none",
        numbers=(int, float),
        names_run="if_set",
        set_by="data",
        basic=True,
        none="the dataset's own, if it has one",
    )
    image_size: str | None = setting(
        None,
        """resize images to N x N or H x W pixels; for classification, resize_crop:N (shorter
        side N, then the central square), resize_crop:N/M (shorter side M) or letterbox:N (longer
        side N, black bars) keeps the proportions; with :bicubic at the end, not bilinear (default:
        no resizing; for folders of photos that differ in size, resize_crop:224 or less)""",
        metavar="N|HxW|resize_crop:N[/M]|letterbox:N[:bicubic]",
        numbers=(int,),
        basic=True,
        none="as the dataset has them",
    )
    channels: Literal[1, 3, 4] | None = setting(
        None,
        """number of channels to which the images of a folder or of hf:NAME are converted: 1 (grey),
        3 (RGB) or 4 (RGB and opacity) (default: 3 if any image is in colour, otherwise 1; for
        TIFF files, the number that they have)""",
        names_run="if_set",
        set_by="data",
        none="as the files have",
    )
    tiff: Literal["pages", "channels"] | None = setting(
        None,
        """how to read the planes of a TIFF file in a folder: as examples (pages) or as channels
        of one example (default: channels if the metadata of ImageJ or OME say so, otherwise
        pages)""",
        names_run="if_set",
        set_by="data",
        none="as the metadata say",
    )
    columns: Columns | None = setting(
        None,
        """columns of hf:NAME that hold images, and labels or masks (default: by their types and
        usual names)""",
        metavar="image=NAME,label=NAME|mask=NAME",
        names_run="if_set",
        set_by="data",
        none="by their types and usual names",
    )
    num_classes: int | None = setting(
        None,
        "number of classes of the labels or masks (default: inferred from the dataset)",
        POSITIVE,
        at_most(MOST_CLASSES),
        resume="free",
        set_by="data",
        none="as many as the dataset has",
    )
    mask_values: MaskValues | None = setting(
        None,
        """stored mask values of the classes 0, 1, ...: numbers, e.g. 0,128,255; colours, e.g.
        000000,ff0000; or binary: 0 is class 0, everything else class 1. 255 is ignored unless it
        is among the numbers (default: the numbers themselves)""",
        metavar="VALUE,VALUE,...|binary",
        names_run="if_set",
        set_by="data",
        none="the numbers themselves",
    )
    instances: bool = setting(
        False,
        """instance segmentation: masks hold a number for each object, of 8 or 16 bits, and 0 for
        background. Trains which pixels belong to a cell, and their directions away from its
        edge; a watershed makes objects of them; requires pip install '.[instances]'""",
        names_run="if_set",
        set_by="data",
        basic=True,
    )
    class_names: tuple[str, ...] | None = setting(
        None,
        """names of the classes, in the order of their numbers, e.g. background,cell (default: the
        dataset's own)""",
        metavar="NAME,NAME,...",
        separator=",",
        resume="free",
        names_run="if_set",
        set_by="data",
        none="the dataset's own",
    )
    augment: tuple[str, ...] | None = setting(
        None,
        """random augmentations of training images, in this order: {jaxdp.data.augment}, e.g.
        pad_crop:4 flip; none for none (default: the dataset's own)""",
        metavar="NAME[:NUMBER]",
        resume="free",
        basic=True,
    )
    normalize: Literal["channel", "image", "imagenet"] = setting(
        "channel",
        """subtract the mean and divide by the standard deviation: channel, of each channel over the
        training set; image, of each image; imagenet, of ImageNet's channels, for torchvision's
        weights""",
        resume="free",
        loads_data=False,
    )
    test_time_augmentation: Literal["flip", "dihedral"] | None = setting(
        None,
        """average the outputs over views of each image in evaluation and prediction, which then
        take two or eight times as long: flip, the image and its mirror image; dihedral, all eight
        flips and rotations by right angles (default: the image alone)""",
        resume="free",
        names_run="if_set",
        loads_data=False,
        none="the image alone",
    )
    data_placement: Literal["device", "host"] | None = setting(
        None,
        """device: keep the dataset in device memory; host: stream it from host threads (default:
        device if the dataset takes at most a quarter of that memory)""",
        resume="free",
        loads_data=False,
    )
    data_workers: int | None = setting(
        None,
        """threads of each process that read and decode examples (default: one for each core, at
        least 2 and at most 8)""",
        POSITIVE,
        at_most(MOST_WORKERS),
        resume="free",
        program=False,
        loads_data=False,
        none="by the cores of the machine",
    )
    on_bad_example: Literal["error", "skip"] = setting(
        "error",
        "what to do with an example that cannot be read: stop, or leave it out and report it",
        resume="free",
    )
    seed: int = setting(
        0,
        "random seed of the initial weights, the order of examples, augmentation and dropout",
        NON_NEGATIVE,
        BELOW_2_31,
        program=False,
        loads_data=False,
        basic=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mask_values", "num_classes", "class_names") if self.instances else ():
            if (value := getattr(self, name)) is not None:
                raise ConfigError(
                    name,
                    ",".join(value) if name == "class_names" else value,
                    f"with {flag('instances')} masks are numbers of objects and have no classes;"
                    f" leave {flag(name)} out",
                )
