"""SGLang's memory: pools of pages, radix trees, pools of windowed layers; integers only."""
