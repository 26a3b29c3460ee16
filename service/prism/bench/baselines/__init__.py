"""What PRISM is measured against, each in the same engine, over the same KV cache, on the same clock.

    sglang          SGLang's queue orders: longest prefix match, depth-first by weight; its eviction strategies
    klpm            k-LPM: the oldest, then k - 1 longest matches
    contextpilot    ContextPilot's index of contexts before the engine, and its schedule
    retention       LFU, GDSF, TTL: eviction from the literature, under any order
    belady          a bound: what a cache would hold that knows who comes next

Stock vLLM is its own class, and the paper's scheme a setting; neither is here.
"""
