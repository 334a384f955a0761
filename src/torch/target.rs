//! The device of a run.

use inspect_checkpoint::engine::protocol::{Device, FailureKind};

use crate::failure::Failure;
use crate::ffi;
use crate::inputs::Place;

/// What a run needs to know of its device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    /// As the request names it.
    pub(crate) device: Device,
    /// Where tensors are made, and whether they are computed there.
    pub(crate) place: Place,
}

impl Target {
    /// Opens what the device needs; nothing more can be opened once the engine is confined.
    pub(crate) fn open(device: Device) -> Result<Target, Failure> {
        let place = match device {
            Device::Cpu => Place {
                device: tch::Device::Cpu,
                computes: true,
            },
            // Whatever its number: the front shows this process no other.
            Device::Cuda(_) => Place {
                device: tch::Device::Cuda(0),
                computes: true,
            },
            Device::CudaSim => Place {
                device: tch::Device::Cuda(0),
                computes: false,
            },
        };
        if device == Device::CudaSim && !ffi::simulated::loaded() {
            return Err(Failure::new(
                FailureKind::Unsupported,
                "the engine was not started on the simulated CUDA device",
            ));
        }
        if device != Device::Cpu {
            let unsupported = |message: String| Failure::new(FailureKind::Unsupported, message);
            match ffi::open_cuda()
                .map_err(|error| Failure::torch(FailureKind::Unsupported, &error))?
            {
                None => {
                    return Err(unsupported(
                        "this libtorch was built without CUDA".to_owned(),
                    ));
                }
                Some(0) => {
                    return Err(unsupported(format!("libtorch finds no GPU for `{device}`")));
                }
                Some(_) => {}
            }
        }
        Ok(Target { device, place })
    }

    /// Whether memory comes from CUDA's caching allocator.
    pub(crate) fn on_cuda(&self) -> bool {
        self.device != Device::Cpu
    }

    /// libtorch's name for the device.
    pub(crate) fn torch_name(&self) -> &'static str {
        if self.on_cuda() { "cuda" } else { "cpu" }
    }
}
