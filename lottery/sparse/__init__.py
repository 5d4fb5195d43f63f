"""The sparse engine: training at the cost of the weights that survive.

After pruning, a network has few weights left, but TensorFlow multiplies whole matrices, zeros included, and a dense
network's step costs the same at every density. This engine keeps the surviving weights alone. Its outputs, gradients,
optimizer steps and evaluations go once through the list of them, so their cost falls in proportion to the density; what
does not fall is the work for each value and example, such as activations, normalisation and the loss.

It trains graphs of dense layers, convolutions, batch normalisation, pooling and sums of Keras 3 or tf_keras, with the
activations, losses and optimizers that `lottery.sparse.kernels` lists. Any other model trains on the compiled loop
(`lottery.training.loop`), and so does a network that has too many weights left to gain. `training.engine_choice` has
the protocol that both fulfil, and the choice. To a run the choice shows in ``round.json`` alone.

There are four files, from Keras to the processor:

- `reading` reads a compiled model: it returns a `Network`, plain data about tensors, operations, loss and optimizer, or
  raises `Obstacle`, whose text ends the sentence "the sparse engine does not train this model: ...".
- `packing` lays a network out: where tensors lie in memory, and what each weight that is left reads and writes.
- `engine` has the state. It packs the values of a model's variables and of the optimizer's slots into flat arrays,
  trains on those, and writes them back where somebody reads the model.
- `kernels` has the arithmetic, compiled by numba: a step, an evaluation, and dicts of activations, losses and
  optimizers.

Masks need no enforcement here: an entry that is masked does not exist, and is zero whenever the model is written.

What it promises of bits: on one machine, a network gets the same bits however its steps are divided among calls,
wherever it is stopped and resumed, and whatever else was trained before. The engine uses one thread, so their number
plays no part. Sums are always added in the same order, and a product and its sum are rounded once. They are not the
bits of the compiled loop, which adds in another order: both engines take the first steps of a network, and the largest
difference of a weight is stored.
"""
