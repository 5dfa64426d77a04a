"""Small programs that each show one thing that a launch graph does; run them with `python -m experiments.launch.NAME`.

hello_world: one node.
consumer_producers: calls to many nodes at once, answered in order.
parameter_server: workers that share parameters kept in shards, with or without cachers in between.
map_reduce: all-to-all messages, a barrier, and exact counts although a mapper dies.
evolution_strategies: a result that is the same for any number of evaluators, however late one of them is.
batched_inference: requests of many clients, answered in batches.
clean_termination: ways to hear of the end and to clean up before it.
peer_cycle: two nodes that call each other.
"""
