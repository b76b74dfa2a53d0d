"""Flags of the model, of local training and of what clients send."""

from typing import get_args

from fesem_jax import models
from fesem_jax.core.batching import Schedule
from fesem_jax.core.local_training import BatchStats, LocalTraining, Precision
from fesem_jax.models import initializers
from fesem_jax.training import augmentation, compression, optimizers, privacy
from fesem_jax.training.optimizers import local_optimizer
from fesem_jax.training.privacy import differential_privacy
from fesem_jax.utils import expressions

from .. import schedules
from .entry import flag, of

MODEL = (
  flag('string', 'model', 'mlp',
    f'Model of every client, of {", ".join(models.NAMES)}, with widths, depths and '
    'groups in brackets, such as resnet8(groups=8) or gru(width=128, depth=1); or '
    'MODULE:FUNCTION for one of your own: FUNCTION(example_shape, num_classes) returns '
    'a fesem_jax.Model, a Linen module or a function that makes an NNX module.'),
  flag('list', 'hidden', ['64'], "Widths of the mlp's hidden layers."),
  flag('enum', 'initializer', 'flax',
    'Initialization of kernels and biases: as in Flax (kernels of variance 1 / '
    'inputs, biases 0) or as in PyTorch (both uniform, with a third of that '
    'variance). Published results may depend on it.',
    enum_values=tuple(initializers.INITIALIZERS)),
  flag('string', 'init_from', '',
    'Source of the initial model: the workdir of a finished run (RUN, or RUN:K for '
    'center K of several), or a file .safetensors, .msgpack or .npz; default: '
    'random initialization.'),
  flag('list', 'init_layers', [],
    'Layers or parameters taken from --init_from, by names or patterns such as stage0* '
    'or **/norm*; the others are initialized at random. Default: all, and the model '
    'must have the same layers.'),
  flag('list', 'train_layers', [],
    'Layers or parameters that train, by names or patterns of paths such as stage0*, '
    '**/norm* or */lora_a (* stands for any characters, / too; **/ for nothing too); '
    'the others keep their initial values, the same for all clients, and are neither '
    'sent nor averaged nor compared. Default: all.'),
)  # fmt: skip

TRAINING = (
  of(local_optimizer, 'optimizer', default='sgd', choices=optimizers.NAMES),
  of(local_optimizer, 'learning_rate', default=0.1),
  *(of(local_optimizer, name) for name in ('momentum', 'weight_decay', 'clip_norm')),
  flag('string', 'lr_schedule', 'constant',
    f'Schedule of the local learning rate over rounds, from --learning_rate: '
    f'{schedules.FORMS}; cosine falls to 0 over --rounds.'),
  of(Schedule, 'batch_size', default=10),
  of(Schedule, 'epochs', 'local_epochs', default=2),
  of(Schedule, 'steps', 'local_steps'),
  flag('string', 'augment', '',
    f'Changes of images in local steps: {augmentation.FORMS}, separated by commas, in '
    'the order given: a window of the image with PADDING zeros on each side; half of '
    'the images mirrored left to right; a square of zeros. Drawn for each client, step '
    'and image; off in evaluation and in losses that clients choose by.'),
  of(LocalTraining, 'batch_stats', choices=get_args(BatchStats)),
  of(LocalTraining, 'keep_optimizer_state'),
  of(LocalTraining, 'precision', choices=get_args(Precision)),
)  # fmt: skip

PRIVACY = (
  of(differential_privacy, 'where', 'dp', default='', choices=('', *privacy.WHERE),
    more='Empty: no differential privacy.'),
  of(differential_privacy, 'clip', 'dp_clip', default=0.0),
  of(differential_privacy, 'noise_multiplier', 'dp_noise_multiplier', default=0.0),
  of(differential_privacy, 'delta', 'dp_delta'),
  flag('string', 'compress', '',
    "Compression of the change of a model that a client sends, such as 'top_k(0.01)'; "
    f'empty: none. Bytes count it.\n{expressions.help_text(compression.KINDS)}'),
)  # fmt: skip
