"""The settings contract that whoever writes settings and whoever serves requests share.

`schema` says what can be set, `document` how it is written down, `watcher` how a running engine learns of a change,
`reference` prints the page a user reads. Nothing here knows of an engine, a cluster or a server.
"""
