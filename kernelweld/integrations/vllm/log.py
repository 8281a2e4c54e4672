"""The engine's own log, where its users look."""

from __future__ import annotations

import logging

#: A child of vLLM's logger: lines look like vLLM's, and VLLM_LOGGING_LEVEL holds for them.
log = logging.LoggerAdapter(logging.getLogger("vllm.kernelweld"))


class _Named(logging.Filter):
    """Puts the name before each line, which vLLM's format leaves out."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = f"kernelweld: {record.msg}"
        return True


log.logger.addFilter(_Named())
