"""The model that is imitated: engines that ask it, the life of its server.

An engine takes requests and gives answers, in any order, token for token. Two exist, as `target.engine` names them:
`sglang` asks a server, `transformers` runs the model in this process (embedded.py).

engine.py        what an engine is asked, and what it answers (`Request`, `Answer`)
launch.py        from the configuration to an engine: the server's command, built and its flags checked
sglang.py        the engine that asks a server over HTTP
embedded.py      the engine in this process: `engine: transformers`
warm_server.py   the client's side of a warm server: one for all jobs that need the same target
keeper.py        the keeper's side: the process itself is started in `guard`, watched, started again, ended
processes.py     processes and ports of this host: found, marked, ended
capture_hook.py  inside the server: the states of a prompt, written while it is prefilled
head.py          embeddings, lm_head and final norm, copied out of the target's weights
weights.py       a GGUF file → a Hugging Face folder → a model in this process
"""
