// Ctrl+C and its relatives: the first one ends the work in order, a second one at once.
#pragma once

namespace ds4::quantize {

/// Takes over SIGINT, SIGTERM and SIGHUP unless they are ignored, so that no temporary file stays. A closed
/// pipe and a limit on file sizes show as failed writes from now on.
void install_stop_signals();
bool stop_requested();
/// The exit status after a stop: 128 and the number of the signal.
int stop_status();

}  // namespace ds4::quantize
