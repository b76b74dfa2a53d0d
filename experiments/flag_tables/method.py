"""Options of methods."""

from fesem_jax.aggregation import robust
from fesem_jax.cohorts import device_profiles

from .. import methods
from .entry import option

METHOD = (
  option('integer', 'num_clusters', 'Centers K.'),
  option('float', 'prox_lambda', 'lambda of the distance penalty (Eq. 7).'),
  option('enum', 'prox_weighting',
    'Weight of the penalty: lambda for every client, or lambda / (m alpha_i).',
    enum_values=('uniform', 'paper')),
  option('float', 'prox_mu', 'mu of the proximal term mu / 2 |w - c|^2.'),
  option('enum', 'weighting',
    'Weights of clients in a mean, and in Eq. 6 of the clustered methods: uniform; by '
    'their numbers of examples; or by_weight, those of the column `weight` of the '
    'data.', enum_values=('uniform', 'by_examples', 'by_weight')),
  option('string', 'cluster_on',
    "Parameters that the E-step compares: 'all', or names and patterns of layers and "
    "parameters, separated by commas, as in --train_layers."),
  option('integer', 'loss_check_every',
    'Interval of rounds in which clients start from the center with the lowest '
    'training loss instead of their own; 0: never.'),
  option('integer', 'recluster_every',
    'Interval of rounds in which clients train from the mean of the centers and are '
    'clustered again; it doubles whenever this confirms the clusters. 0: never.'),
  option('float', 'temperature',
    'If positive, soft assignment: each client counts in the mean of every center, by '
    'exp(-(D_k / min D - 1) / temperature) of its squared distances D.'),
  option('integer', 'max_age',
    'Clients that last took part more than this many rounds ago start from the '
    'center with the lowest training loss; 0: never.'),
  option('bool', 'late_joins',
    'Only the --init_clients clients of the first clustering have a cluster; the '
    'others join one by training loss when they are first drawn.'),
  option('bool', 'reseed_empty',
    'Move a center without clients to the client farthest from its own center.'),
  option('enum', 'init_models',
    'Before the first clustering, clients train from one common random model, or '
    'each from a different random model. by_loss: no clustering; each client trains '
    'K random models and joins the one with the lowest training loss, as in the '
    'code of FedRC.',
    enum_values=('common', 'random', 'by_loss')),
  option('bool', 'track_objective',
    'Also log Eq. 6 after the local step and after the E-step; experiments.figures '
    'plots the change by each step of a round.'),
  option('integer', 'init_epochs', 'Local epochs before the first clustering.'),
  option('float', 'init_tolerance',
    'Repeat --init_epochs, at most 10 times, until the mean training loss falls by '
    'less than this; 0: train once.'),
  option('integer', 'init_restarts',
    'Restarts of the first clustering, or draws of the first centers.'),
  option('enum', 'init_seeding',
    'Seeds of the first clustering: random clients or k-means++.',
    enum_values=('random', 'plusplus')),
  option('integer', 'init_clients',
    'Random clients of the first clustering, or on which draws of the first centers '
    'are compared. FeSEM, 0: all, at most 4096 unless --client_state=stacked. PACFL, '
    '0: all; the others join the cluster of the client with the nearest subspace. '
    'FedGroup, 0: 20 for each group; the others join the nearest group.'),
  option('integer', 'init_rounds',
    'Rounds before the draws of the first centers are compared.'),
  option('enum', 'client_state',
    "Where clients' models (SCAFFOLD: control variates; FedDyn: gradients) are "
    'stored between rounds: stacked, on the devices; offloaded, in the memory of '
    'their host, from which each chunk of clients is copied (for accelerators; same '
    'results); streamed (FeSEM only), only the centers are stored.',
    enum_values=('stacked', 'offloaded', 'streamed')),
  option('enum', 'server_optimizer',
    'Server update from the mean change of the clients (FedOpt): the mean, or a '
    'step of FedAvgM, FedAdagrad, FedAdam or FedYogi.',
    enum_values=tuple(methods.SERVER_OPTIMIZERS)),
  option('float', 'server_learning_rate',
    'Learning rate of --server_optimizer; eta_g of SCAFFOLD and FedBuff; epsilon of '
    'Reptile; beta of pFedMe.'),
  option('integer', 'buffer_size',
    "FedBuff: client updates that make a server update, a round; 0: the paper's 10, or "
    'all clients if they are fewer.'),
  option('integer', 'concurrency',
    'FedBuff: clients that train at a time; 0: all.'),
  option('enum', 'client_devices',
    'FedBuff: the profile of devices, as of --device_profile, by which updates arrive.',
    enum_values=tuple(device_profiles.PROFILES)),
  option('float', 'server_beta1', "Momentum of --server_optimizer, FedOpt's beta_1."),
  option('float', 'server_beta2',
    "Second-moment decay of adam and yogi, FedOpt's beta_2."),
  option('float', 'server_tau',
    'Tau of adagrad, adam and yogi in FedOpt.'),
  option('float', 'ditto_lambda',
    'lambda of the proximal term lambda / 2 |v - w|^2 to the global model.'),
  option('float', 'dyn_alpha',
    "alpha of FedDyn's penalty; a smaller value allows clients and server to move "
    'further.'),
  option('float', 'moon_mu',
    "mu: weight of MOON's contrastive loss of representations."),
  option('float', 'moon_temperature',
    "Temperature of MOON's contrastive loss, which divides cosines of "
    'representations.'),
  option('string', 'features_before',
    "MOON: name of the layer whose input is an example's representation."),
  option('float', 'soft_lambda',
    'lambda of the proximal term lambda / 2 sum_k u_ik |w - c_k|^2 to all centers.'),
  option('integer', 'importance_every',
    "tau: rounds between two estimates of a client's weights for the centers."),
  option('float', 'importance_floor',
    'sigma: the minimum weight of a center for a client.'),
  option('integer', 'clients_per_center',
    'Clients of the round that are drawn for each center; 0: all clients count.'),
  option('float', 'apfl_alpha',
    "Initial weight of a client's personal model in APFL's mixture with the global "
    'one.'),
  option('bool', 'adapt_alpha',
    'Learn the mixing weight of each client in APFL at every local step; plain SGD '
    'only.'),
  option('float', 'pfedme_lambda',
    'lambda of pFedMe, which keeps personal models near the local ones.'),
  option('integer', 'inner_steps',
    'Gradient steps toward the personal model on each batch.'),
  option('float', 'inner_learning_rate',
    "Learning rate of pFedMe's --inner_steps."),
  option('float', 'adaptation_rate',
    'Learning rate of the single gradient step by which each client adapts the '
    'global model (Per-FedAvg).'),
  option('enum', 'meta_gradient',
    "Per-FedAvg's gradient: first_order omits the Hessian; hessian_free "
    'approximates it by a difference of gradients.',
    enum_values=('first_order', 'hessian_free')),
  option('float', 'hessian_delta',
    "Step length of Per-FedAvg's difference of gradients, in gradients."),
  option('float', 'ala_rate',
    "Learning rate of FedALA's weights, which mix the global model's top layers "
    "into each client's model; 0: clients use the global layers."),
  option('float', 'ala_sample',
    "Fraction of a client's batches on which FedALA's weights are learned in an "
    'epoch.'),
  option('integer', 'ala_start_epochs',
    "Epochs in which a client learns FedALA's weights the first time; later rounds "
    'use one epoch.'),
  option('float', 'amp_lambda',
    'lambda of FedAMP, which pulls each client to a mean of similar models with '
    'weight lambda / (2 alpha); 0: no pull.'),
  option('float', 'amp_sigma',
    'FedAMP: squared distance of two models at which their attention decreases to 1 '
    '/ e.'),
  option('float', 'amp_alpha',
    "alpha of FedAMP's message passing; 0: --amp_sigma over the number of other "
    'clients, the largest value for which no client can have a negative weight in '
    'its own mean.'),
  option('float', 'l2gd_lambda',
    'lambda of L2GD, which pulls all models to their mean.'),
  option('float', 'aggregation_probability',
    'Probability that a round of L2GD aggregates the models; in all other rounds, '
    'clients train locally.'),
  option('list', 'head_layers',
    'Layers or parameters of the head, by names or patterns as in --train_layers. The '
    'head is personal (LG-FedAvg: shared; FedBABU: fixed; FedALA: mixed with the '
    'global one).'),
  option('list', 'norm_layers',
    'FedBN: normalization layers, by names or patterns as in --train_layers. Default: '
    'those with a parameter scale.'),
  option('integer', 'head_epochs',
    'Local epochs of the head.'),
  option('enum', 'first_assignment',
    "CLoVE's clusters of the first round: random ones, in which every model gets a "
    'client, or those of the losses of the random models.',
    enum_values=('random', 'losses')),
  option('bool', 'choose_num_clusters',
    'CLoVE chooses between 2 and --num_clusters clusters in each round, by the '
    'silhouette score of the losses.'),
  option('integer', 'stable_rounds',
    'CLoVE stops clustering once all clients of a round kept their cluster in this '
    'many of their rounds in a row. 0: it clusters in every round.'),
  option('integer', 'cluster_every',
    'Interval of rounds in which CFL-GP clusters, from the first round on.'),
  option('integer', 'cluster_updates',
    'Number of times that CFL-GP clusters; clients keep their clusters in later '
    'rounds.'),
  option('integer', 'num_vectors',
    "p: number of first singular vectors of a client's examples of each label, "
    'which PACFL compares.'),
  option('enum', 'proximity',
    'Measure of PACFL: the smallest principal angle between the subspaces of two '
    'clients, the sum of the angles between vectors of the same label and index, or '
    "the smallest angle between any two of their vectors, as in the authors' code.",
    enum_values=('smallest_angle', 'sum_of_angles', 'entries')),
  option('float', 'angle_threshold',
    'PACFL merges clusters whose distance is at most this many degrees, and then '
    'others until --num_clusters remain; 0: until --num_clusters remain.'),
  option('float', 'inter_group_rate',
    "FedGroup: weight of each other group's center of length 1 in a group after a "
    'round, relative to a weight of 1 for its own center; 0: no aggregation between '
    'groups.'),
  option('float', 'stocfl_tau',
    'StoCFL merges clusters whose mean updates of a fixed random model have at '
    'least this cosine. A higher value gives more clusters.'),
  option('integer', 'anchor_epochs',
    'Local epochs in which new clients of StoCFL train that fixed random model; 0: '
    'a gradient.'),
  option('float', 'stocfl_lambda',
    "lambda of the proximal term lambda / 2 |v - w|^2 of StoCFL's clusters to the "
    'global model.'),
  option('bool', 'same_cohort',
    'FedDANE: use one cohort for both passes.'),
  option('float', 'straggler_fraction',
    'Probability that a client trains only 1 to E epochs in a round.'),
  option('enum', 'variant',
    'IFCA, CFL-GP: average models, or one full-batch gradient step.',
    enum_values=('model', 'gradient')),
  option('float', 'trim',
    'Fraction of a cluster that trimmed k-means omits.'),
  option('enum', 'aggregation',
    'Aggregation of the models of a cluster, or of all clients: the mean; the '
    'median or trimmed mean of each coordinate; the mean of changes of bounded '
    'length; or the model closest to its nearest others (Krum). All but the mean '
    'weight clients uniformly.', enum_values=robust.AGGREGATIONS),
  option('float', 'beta',
    'Fraction of clients that the trimmed mean drops at each end, or that Krum '
    'assumes to be bad.'),
  option('float', 'norm_bound',
    'Largest L2 length of a change with --aggregation=norm_bound; longer changes '
    "are shortened. 0: the median of the cluster's lengths."),
  option('integer', 'krum_models',
    'Number of models with the lowest scores that --aggregation=krum averages.'),
  option('integer', 'warmup_rounds',
    'Rounds of FedAvg before FLUX clusters the clients.'),
  option('float', 'eps_scaling',
    "Factor of the radius of FLUX's clustering; larger values give fewer clusters."),
  option('string', 'latent_layer',
    'Dense layer whose inputs FLUX uses as features, such as dense0; empty: the '
    'last one.'),
  option('integer', 'max_clusters',
    'Maximum number of clusters (fed_cluster, flux), of models in use (fed_drift), '
    'or of clusters at a time (stocfl). 0, except in fed_cluster: the number of '
    'clients.'),
  option('float', 'eps1',
    'A cluster has converged if |mean update| < eps1 max |update|.'),
  option('enum', 'eps1_scale',
    'relative: see --eps1; absolute: a cluster has converged if |mean update| < eps1.',
    enum_values=('relative', 'absolute')),
  option('float', 'eps2',
    'The clients of a cluster have not converged if max |update| > eps2.'),
  option('float', 'gamma',
    'Minimum separation of the parts of a split.'),
  option('integer', 'min_size',
    'Clusters of this many clients or fewer are not split.'),
  option('integer', 'min_rounds', 'Rounds before the first split.'),
  option('enum', 'linkage',
    'FedCluster: rule of a split (minimax, complete, average). PACFL: distance of '
    'two clusters, by the average, the largest (complete) or the smallest (single) '
    'angle of their clients.',
    enum_values=('minimax', 'complete', 'average', 'single')),
  option('integer', 'check_every',
    'Rounds between checks for a split (fed_cluster), or rounds of a time step, '
    'which starts with a check for drift (fed_drift).'),
  option('float', 'drift_delta',
    'FedDrift: a client has drifted if its lowest loss rose by more than this since '
    "the last time step; two models merge if the loss of each on the other's "
    'clients exceeds the loss of the other model there by less than this.'),
  option('bool', 'start_alone',
    'Whether each client has a separate model in the first time step of FedDrift, '
    'which finds groups that exist from the start; otherwise all clients share one '
    'model.'),
)  # fmt: skip
