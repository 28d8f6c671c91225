"""An event loop for tests that wait, in which no time passes."""

import asyncio
import selectors

SLEEP_LATENESS_S = 1e-3


class VirtualClock(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it.

    A real sleep ends a little late, never early; so do these. Without that, seven
    sleeps of 1/7 s would end within the second and the example print one more number.
    """

    def __init__(self):
        self.now_s = 0.0
        super().__init__(selectors.DefaultSelector())
        select = self._selector.select

        def select_at_once(timeout=None):
            ready = select(0)
            if not ready and timeout:
                self.now_s += timeout + SLEEP_LATENESS_S
            return ready

        self._selector.select = select_at_once

    def time(self):
        return self.now_s


def run_on_virtual_clock(coroutine):
    with asyncio.Runner(loop_factory=VirtualClock) as runner:
        return runner.run(coroutine)
