"""Files of one model are read back, whoever wrote them."""

import numpy as np
import pytest

from fesem_jax.run.results import export
from fesem_jax.utils.errors import UserError

LAYERS = {
  'dense0': {'kernel': np.arange(6, dtype=np.float32).reshape(2, 3)},
  'block': {'norm': {'scale': np.ones(3, np.float32)}},
}
FLAT = {'dense0/kernel': LAYERS['dense0']['kernel'], 'block/norm/scale': np.ones(3)}


@pytest.mark.parametrize('ending', ['.safetensors', '.msgpack', '.npz'])
def test_arrays_come_back_by_their_paths(ending, tmp_path):
  path = tmp_path / f'model{ending}'
  if ending == '.npz':  # As PyTorch names them.
    np.savez(path, **{name.replace('/', '.'): x for name, x in FLAT.items()})
  else:
    if ending == '.safetensors':
      pytest.importorskip('safetensors')
    export.write(path, LAYERS, FLAT, {})
  found = export.read(path)
  assert found.keys() == FLAT.keys()
  for name, x in FLAT.items():
    np.testing.assert_array_equal(found[name], x)


@pytest.mark.parametrize('ending', ['.msgpack', '.npz', '.safetensors'])
def test_damaged_files_are_refused(ending, tmp_path):
  path = tmp_path / f'model{ending}'
  path.write_bytes(b'no model')
  with pytest.raises(UserError, match=f'model{ending}'):
    export.read(path)
  with pytest.raises(UserError, match='path'):
    export.write(tmp_path / 'model.pt', LAYERS, FLAT, {})
