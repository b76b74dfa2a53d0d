"""Stack Overflow of TensorFlow Federated loads to the sentences that were written."""

import h5py
import numpy as np
import pytest

from fesem_jax import data
from fesem_jax.utils.errors import UserError
from tests.support.sources import contents, sizes

USERS = {
  '00000001': (['how do i sort a list', 'sort it'], ['how to sort']),
  '00000002': (['a list of words'] * 3, ['a list', 'i sort it now']),
  '00000003': (['only here'], []),
}
LONG = ' '.join(f'w{i}' for i in range(30))


def write(folder, users, counts=None):
  folder.mkdir(parents=True, exist_ok=True)
  for part, split in enumerate(('train', 'test')):
    with h5py.File(folder / f'stackoverflow_{split}.h5', 'w') as file:
      file.create_group('examples')
      for name, said in users.items():
        if said[part]:
          group = file.create_group(f'examples/{name}')
          group['tokens'] = [s.encode() for s in said[part]]
          group['score'] = np.zeros(len(said[part]), np.int64)
  if counts is not None:
    (folder / 'stackoverflow.word_count').write_text(counts)


def words(split, row, target):
  names = split.info.class_names
  return [names[int(t)] for t in (split.y if target else split.x)[row] if t > 0]


def test_sentences_are_their_words_with_begin_and_end(tmp_path):
  users = USERS | {'00000004': ([LONG], ['sort'])}
  write(tmp_path / 'tff_stackoverflow', users)
  train, test = data.load('stackoverflow', data_dir=tmp_path)
  assert train.info.names.tolist() == ['00000001', '00000002', '00000004']
  assert train.task == 'sequence'
  assert (sizes(train).tolist(), sizes(test).tolist()) == ([2, 3, 1], [1, 2, 1])
  assert train.x.shape[1:] == train.y.shape[1:] == (20,)
  sentence = ['how', 'do', 'i', 'sort', 'a', 'list']
  assert words(train, 0, target=False) == ['begin', *sentence, 'end']
  assert words(train, 0, target=True) == [*sentence, 'end']
  assert (np.asarray(train.y[0])[7:] == -1).all()
  assert words(train, 5, target=False) == ['begin', *LONG.split()[:19]]
  assert words(train, 5, target=True) == LONG.split()[:20]
  assert words(test, 0, target=True) == ['how', 'unknown', 'sort', 'end']
  assert train.num_classes == 43


def test_words_are_those_of_the_file_of_counts(tmp_path):
  write(tmp_path / 'tff_stackoverflow', USERS, 'sort 9\nlist 12\nabsent 1\n')
  train, _ = data.load('stackoverflow', data_dir=tmp_path)
  names = ('padding', 'list', 'sort', 'absent', 'unknown', 'begin', 'end')
  assert train.info.class_names == names
  write(tmp_path / 'tff_stackoverflow', USERS, 'sort\n')
  with pytest.raises(UserError, match='word_count'):
    data.load('stackoverflow', data_dir=tmp_path)


def test_some_users_are_drawn_and_read(tmp_path):
  users = {f'{i:08d}': ([f'word{i} is here'], ['word']) for i in range(9)}
  write(tmp_path / 'tff_stackoverflow', users)
  train, _ = data.load('stackoverflow', data_dir=tmp_path, num_clients=2, seed=1)
  again, _ = data.load('stackoverflow', data_dir=tmp_path, num_clients=2, seed=1)
  assert train.info.names.tolist() == again.info.names.tolist()
  assert len(train.info.names) == len(contents(train)) == 2
