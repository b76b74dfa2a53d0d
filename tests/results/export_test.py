"""Files of one model are read back, whoever wrote them."""

import numpy as np
import pytest

from fesem_jax.run.results import export
from fesem_jax.utils.errors import UserError

LAYERS = {
  'dense0/kernel': np.arange(6, dtype=np.float32).reshape(2, 3),
  'block/norm/scale': np.ones(3, np.float32),
}


@pytest.mark.parametrize('ending', ['.safetensors', '.npz', 'of PyTorch.npz'])
def test_arrays_come_back_by_their_paths(ending, tmp_path):
  path = tmp_path / f'model{ending}'
  if ending == '.safetensors':
    pytest.importorskip('safetensors')
  if ending == 'of PyTorch.npz':
    np.savez(path, **{name.replace('/', '.'): x for name, x in LAYERS.items()})
  else:
    export.write(path, LAYERS, {'scale': 1.0})
  found = export.read(path)
  assert found.keys() == LAYERS.keys()
  for name, x in LAYERS.items():
    np.testing.assert_array_equal(found[name], x)
  path.write_bytes(b'no model')
  with pytest.raises(UserError, match=path.name):
    export.read(path)
  with pytest.raises(UserError, match=r'model\.pt'):
    export.write(tmp_path / 'model.pt', LAYERS, {})
