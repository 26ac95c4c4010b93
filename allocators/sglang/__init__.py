"""SGLang's memory: pools of pages, radix trees with eviction strategies, pools of windows. All of it integers."""
