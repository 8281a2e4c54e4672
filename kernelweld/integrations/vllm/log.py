"""The engine's own log, where its users look."""

from __future__ import annotations

import logging

#: A child of vLLM's logger: lines look like vLLM's, and VLLM_LOGGING_LEVEL holds for them.
log = logging.LoggerAdapter(logging.getLogger("vllm.kernelweld"))


class _Named(logging.Filter):
    """Says whose line it is: vLLM's format shows a file's name without its folder, and no logger's name."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = f"kernelweld: {record.msg}"
        record.filename = f"kernelweld/{record.filename}"
        return True


log.logger.addFilter(_Named())
