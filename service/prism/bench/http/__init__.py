"""`prism bench`: real servers under load, over HTTP.

    workloads   what is asked, and when: sessions of turns
    load        sends it, open loop or closed, and notes what each request's client saw
    servers     the arms: where they are, whether they are PRISM, how their caches are made cold
    run         rates, repeats and arms, interleaved
    report      percentiles, paired intervals, failures; as table, Markdown and JSON
    command     the command line

Nothing here knows an engine: any server of OpenAI's API can be an arm.
"""
