"""Flags of the model and of local training."""

from fesem_jax import models
from fesem_jax.core import local_training
from fesem_jax.models import initializers
from fesem_jax.training import augmentation, compression, optimizers, privacy

from .. import schedules
from .entry import flag

MODEL = (
  flag('string', 'model', 'mlp',
    f'Model of every client, of {", ".join(models.NAMES)}; or MODULE:FUNCTION for one '
    'of your own: FUNCTION(example_shape, num_classes) returns a fesem_jax.Model, a '
    'Linen module or a function that makes an NNX module.'),
  flag('string', 'model_options', '',
    'NAME=VALUE,...: widths, depths and groups of a model of this package, e.g. '
    'groups=8 of resnet8 or width=128,depth=1 of lstm, gru and transformer; or '
    'keyword-only arguments of --model=MODULE:FUNCTION.'),
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
  flag('list', 'freeze_layers', [],
    'Layers or parameters that do not train, as an alternative to --train_layers.'),
)  # fmt: skip

TRAINING = (
  flag('enum', 'optimizer', 'sgd',
    "Local optimizer, with PyTorch's update rules: sgd; momentum, SGD with --momentum; "
    'adam; or adamw, whose --weight_decay is decoupled.',
    enum_values=optimizers.NAMES),
  flag('float', 'momentum', 0.9, 'Momentum of --optimizer=momentum; 0: plain SGD.'),
  flag('bool', 'nesterov', False, "Nesterov's form of --optimizer=momentum."),
  flag('float', 'weight_decay', 0.0,
    'Adds --weight_decay times the parameters to the gradient before momentum and '
    'moments; with adamw, steps shrink the parameters by --learning_rate times it.'),
  flag('float', 'adam_beta1', optimizers.ADAM.beta1,
    "Decay of adam's and adamw's mean of gradients."),
  flag('float', 'adam_beta2', optimizers.ADAM.beta2,
    "Decay of adam's and adamw's mean of squared gradients."),
  flag('float', 'adam_epsilon', optimizers.ADAM.epsilon,
    'Epsilon of adam and adamw, added to the root of the mean of squared gradients.'),
  flag('float', 'clip_norm', 0.0,
    "Clips each step's gradient of a client, including penalty and correction, to "
    'this L2 norm over all its parameters; 0: no clipping.'),
  flag('float', 'learning_rate', 0.1, 'Local learning rate.'),
  flag('string', 'lr_schedule', 'constant',
    f'Schedule of the local learning rate over rounds, from --learning_rate: '
    f'{schedules.FORMS}; cosine falls to 0 over --rounds.'),
  flag('string', 'local_lr_schedule', 'constant',
    'Schedule of the learning rate over the local steps of each round, of the same '
    'forms with STEPS for ROUNDS; cosine falls to 0 over --local_steps. It multiplies '
    '--lr_schedule.'),
  flag('integer', 'batch_size', 10,
    'Local batch size; 0: all examples of a client.'),
  flag('integer', 'local_epochs', 2, 'Local epochs of a round.'),
  flag('integer', 'local_steps', 0,
    'Local steps of a round; if positive, instead of --local_epochs.'),
  flag('string', 'augment', '',
    f'Changes of images in local steps: {augmentation.FORMS}, separated by commas, in '
    'the order given: a window of the image with PADDING zeros on each side; half of '
    'the images mirrored left to right; a square of zeros. Drawn for each client, step '
    'and image; off in evaluation and in losses that clients choose by.'),
  flag('enum', 'dp', '',
    'Differential privacy of clients: Gaussian noise that each client adds to its '
    "change of the model (client), or the server to the sum of each center's changes "
    '(server, with --weighting=uniform). Changes are clipped to --dp_clip. '
    'summary.json and tables have epsilon. Empty: none.',
    enum_values=('', *privacy.WHERE)),
  flag('float', 'dp_clip', 0.0,
    "L2 norm to which --dp clips a client's change of the model."),
  flag('float', 'dp_noise_multiplier', 0.0,
    'Standard deviation of the noise of --dp, in units of --dp_clip; 0: only clips.'),
  flag('float', 'dp_delta', 1e-5,
    'Delta for which --dp computes epsilon (package dp-accounting); 0: no epsilon.'),
  flag('string', 'compress', '',
    f'Compression of the change of the model that a client sends: {compression.FORMS}; '
    'empty: none. Bytes count it.'),
  flag('bool', 'error_feedback', True,
    'Whether a client adds what --compress=top_k or random_k has not sent to its next '
    'change.'),
  flag('enum', 'batch_stats', 'average',
    'Running statistics of BatchNorm (--model=resnet8_bn): averaged with the rest of '
    'the model, or local, kept by each client and never sent.',
    enum_values=local_training.BATCH_STATS),
  flag('bool', 'keep_optimizer_state', False,
    'Whether clients keep the state of the local optimizer, e.g. momentum, from round '
    'to round; else each round begins without any.'),
  flag('string', 'client_work', '',
    'CSV file with a column client, the names of all clients, and some of rate, a '
    'factor of --learning_rate; epochs, in place of --local_epochs; and steps, in '
    'place of --local_steps.'),
  flag('enum', 'precision', 'highest',
    'Precision of the products of local training on accelerators: highest, as float32, '
    'takes six passes of a TPU; high three, with about 16 bits of each factor; default '
    'one, with 8 bits. On a GPU, high and default are TensorFloat-32. Sums, distances '
    'between models, k-means, losses that clients choose by and evaluation stay '
    'float32. No effect on a CPU, which always multiplies in float32.',
    enum_values=local_training.PRECISIONS),
)  # fmt: skip
