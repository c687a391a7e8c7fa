#!/bin/sh
# Question: which numbers do SimpleITK and pydicom return for a DICOM image of MONOCHROME1, in which
# the lowest value is shown white?
# Guess: the stored ones, both. How a value is shown is the viewer's task.
# What happens: pydicom returns the stored values. SimpleITK returns 4095 minus each, for 12 bits,
# and still says MONOCHROME1 in the metadata.
# Seen with simpleitk 2.5.7 and pydicom 3.0.2.
# Why it matters: some X-ray plates and mammograms are MONOCHROME1. A model that was trained on
# pixels of one library sees negatives from the other, and who inverts by the tag after SimpleITK
# inverts twice.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check simpleitk==2.5.7 \
    pydicom==3.0.2 numpy==2.4.6
cat >find.py <<'END'
import numpy as np
import pydicom
import SimpleITK
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

print("simpleitk", SimpleITK.__version__, "pydicom", pydicom.__version__)
stored = np.array([[0, 5, 100, 4095]], "<u2")
for photometric in ("MONOCHROME1", "MONOCHROME2"):
    image = Dataset()
    image.file_meta = FileMetaDataset()
    image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    image.file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    image.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    image.SOPClassUID = SecondaryCaptureImageStorage
    image.SOPInstanceUID = image.file_meta.MediaStorageSOPInstanceUID
    image.Rows, image.Columns = stored.shape
    image.SamplesPerPixel, image.PhotometricInterpretation = 1, photometric
    image.BitsAllocated, image.BitsStored, image.HighBit = 16, 12, 11
    image.PixelRepresentation, image.PixelData = 0, stored.tobytes()
    image.save_as("image.dcm", enforce_file_format=True)
    read = SimpleITK.ReadImage("image.dcm")
    print(f"{photometric}: stored {stored.ravel().tolist()}")
    print("  pydicom  ", pydicom.dcmread("image.dcm").pixel_array.ravel().tolist())
    print("  SimpleITK", SimpleITK.GetArrayFromImage(read).ravel().tolist())
    print("  SimpleITK's tag:", read.GetMetaData("0028|0004").strip())
END
venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
simpleitk 2.5.7 pydicom 3.0.2
MONOCHROME1: stored [0, 5, 100, 4095]
  pydicom   [0, 5, 100, 4095]
  SimpleITK [4095, 4090, 3995, 0]
  SimpleITK's tag: MONOCHROME1
MONOCHROME2: stored [0, 5, 100, 4095]
  pydicom   [0, 5, 100, 4095]
  SimpleITK [0, 5, 100, 4095]
  SimpleITK's tag: MONOCHROME2
END
