/// @file probe_emulator.cpp
/// The probes as C++, for a build system that knows one language per file name.
#include "probe.cu"
