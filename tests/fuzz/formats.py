"""Every kind of file that a loader or a run reads, by name."""

from tests.fuzz import (
  data_files,
  flag_files,
  framework_files,
  run_files,
  table_files,
  tff_files,
  weight_files,
)

FORMATS = (
  data_files.FORMATS
  | tff_files.FORMATS
  | framework_files.FORMATS
  | flag_files.FORMATS
  | run_files.FORMATS
  | table_files.FORMATS
  | weight_files.FORMATS
)
