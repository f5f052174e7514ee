"""What a device is: plain numbers that code generation, schedules and cost models are made from."""

from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.target.cuda import CudaTarget

Target = CpuTarget | CudaTarget
