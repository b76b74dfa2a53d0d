"""A part of `benchmarks.accelerator` that dies, or never ends."""

import os
import time


def measure(watch):
  watch.say({'what': os.environ['STUB'], 'value': 1.5})
  if os.environ['STUB'] == 'dies':
    os._exit(3)
  time.sleep(100)
