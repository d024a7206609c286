"""The model that is imitated: engines that ask it, the life of its server.

An engine takes requests and gives answers, in any order, token for token. Two exist: `sglang` asks a server, `embedded`
runs transformers in this process.
"""
