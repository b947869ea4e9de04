/// @file ptx.cuh
/// All of Hopper's instructions that CUDA C++ has no name for; see ptx/address.cuh for the folder's rules.
#pragma once

#include "ptx/address.cuh"
#include "ptx/async_copy.cuh"
#include "ptx/fence.cuh"
#include "ptx/matrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/tensor_map.cuh"
#include "ptx/wgmma.cuh"
