//! What a card is like without a model: its context, its libraries' workspaces, where its driver puts new memory.

use std::fs::File;

use inspect_checkpoint::trace::{Event, LibraryUse, Probe, SegmentAction};
use tch::{Kind, TchError, Tensor};

use crate::failure::Failure;
use crate::ffi::{cuda, recording};
use crate::output::Output;
use crate::record::Decoder;
use crate::target::Target;

/// Segments whose addresses are looked at, and the size of each: above what shares a segment with others.
const SEGMENTS: usize = 8;
const SEGMENT_BYTES: i64 = 32 << 20;

/// A library, and the smallest thing that makes PyTorch use it.
type Step = (&'static str, fn(tch::Device) -> Result<Tensor, TchError>);

/// In this order: the first is nothing but a tensor, the second PyTorch's own kernels.
const STEPS: [Step; 7] = [
    ("context", |device| {
        Tensor::f_empty([1], (Kind::Float, device))
    }),
    ("kernels", |device| {
        let ones = Tensor::f_ones([1024], (Kind::Float, device))?;
        ones.f_add(&ones)?.f_sum(Kind::Float)
    }),
    ("cublas", |device| {
        let square = Tensor::f_ones([256, 256], (Kind::Float, device))?;
        square.f_mm(&square)
    }),
    ("cublaslt", |device| {
        let square = Tensor::f_ones([256, 256], (Kind::Half, device))?;
        let bias = Tensor::f_ones([256], (Kind::Half, device))?;
        bias.f_addmm(&square, &square)
    }),
    ("cudnn", |device| {
        let x = Tensor::f_ones([8, 16, 32, 32], (Kind::Float, device))?;
        let w = Tensor::f_ones([16, 16, 3, 3], (Kind::Float, device))?;
        x.f_conv2d(&w, None::<Tensor>, [1, 1], [1, 1], [1, 1], 1)
    }),
    ("cufft", |device| {
        let x = Tensor::f_ones([64, 64], (Kind::Float, device))?;
        x.f_fft_fft(None, -1, "backward")
    }),
    ("cusolver", |device| {
        let x = Tensor::f_eye(64, (Kind::Float, device))?;
        Ok(x.f_linalg_cholesky_ex(false, false)?.0)
    }),
];

/// Measures the card. `used_before` is what others had taken of it.
pub(crate) fn probe(
    output: &mut Output<File>,
    target: Target,
    used_before: Option<u64>,
) -> Result<Probe, Failure> {
    let device = target.place.device;
    let mut libraries = Vec::new();
    let mut kept = 0;
    for (library, step) in STEPS {
        output.progress(library)?;
        let done = step(device);
        cuda::synchronize()?;
        let unavailable = done
            .as_ref()
            .err()
            .map(|error| first_line(&error.to_string()));
        drop(done);
        let stats = cuda::stats()?;
        let used = cuda::memory_since(0)?.end;
        let outside = used
            .saturating_sub(stats.reserved.current)
            .saturating_sub(used_before.unwrap_or(0));
        libraries.push(LibraryUse {
            library: library.to_owned(),
            used_bytes: unavailable.is_none().then_some(outside),
            workspace_bytes: stats.allocated.current.saturating_sub(kept),
            unavailable,
        });
        kept = stats.allocated.current;
    }
    // The allocator can be listened to once it has a device.
    recording::start(target.torch_name())?;
    let segment_addresses = segment_addresses(device)?;
    recording::stop()?;
    Ok(Probe {
        card: cuda::card()?,
        used_before_bytes: used_before,
        libraries,
        segment_addresses,
    })
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// Addresses of segments, in the order in which the driver made them.
fn segment_addresses(device: tch::Device) -> Result<Vec<u64>, Failure> {
    cuda::release()?;
    let mut decoder = Decoder::default();
    let mut events: Vec<Event> = Vec::new();
    let mut take = |events: &mut Vec<Event>| {
        recording::drain(|words| {
            decoder.decode(words, |event| {
                events.push(event);
                Ok::<(), Failure>(())
            })
        })?
    };
    take(&mut events)?;
    events.clear();
    let held: Result<Vec<Tensor>, TchError> = (0..SEGMENTS)
        .map(|_| Tensor::f_empty([SEGMENT_BYTES], (Kind::Uint8, device)))
        .collect();
    take(&mut events)?;
    // Fewer where the card has no memory for all.
    drop(held);
    cuda::release()?;
    Ok(events
        .iter()
        .filter_map(|event| match event {
            Event::Segment {
                action: SegmentAction::Alloc,
                addr,
                ..
            } => Some(*addr),
            _ => None,
        })
        .collect())
}
