//! Convolutions of cuDNN: what was run, and what the simulated one shall answer.

use inspect_checkpoint::trace::{Convolution, ConvolutionRun, Pass};

use super::{Result, TorchError, c, call};

/// `cudnnDataType_t` by PyTorch's names.
const DATA_TYPES: [(i32, &str); 9] = [
    (0, "float32"),
    (1, "float64"),
    (2, "float16"),
    (3, "int8"),
    (4, "int32"),
    (6, "uint8"),
    (9, "bfloat16"),
    (12, "float8_e4m3fn"),
    (13, "float8_e5m2"),
];

/// What a data type without a name begins with.
const UNNAMED: &str = "cudnn:";

/// The convolutions that cuDNN ran since the start; none without the recorder.
pub(crate) fn runs() -> Result<Option<Vec<ConvolutionRun>>> {
    let mut all = Vec::new();
    loop {
        let mut raw = c::Convolution::default();
        let (mut known, mut workspace_bytes, mut calls) = (0, 0_u64, 0_u64);
        // SAFETY: the four places live through the call.
        call(|e| unsafe {
            c::shim_convolution_run(
                all.len(),
                &raw mut known,
                &raw mut raw,
                &raw mut workspace_bytes,
                &raw mut calls,
                e,
            )
        })?;
        match known {
            0 => return Ok(Some(all)),
            1 => all.push(ConvolutionRun {
                convolution: named(&raw),
                workspace_bytes,
            }),
            _ => return Ok(None),
        }
    }
}

/// From now on the simulated cuDNN asks for this workspace where this convolution is planned.
pub(crate) fn answer(run: &ConvolutionRun) -> Result<()> {
    let raw = numbered(&run.convolution).ok_or_else(|| TorchError {
        out_of_memory: false,
        message: format!(
            "no convolution of cuDNN is like this: {:?}",
            run.convolution
        ),
    })?;
    // SAFETY: the description lives through the call, which copies it.
    call(|e| unsafe { c::shim_sim_convolution(&raw const raw, run.workspace_bytes, e) })
}

fn named(raw: &c::Convolution) -> Convolution {
    let spatial = usize::try_from(raw.spatial_dims).unwrap_or(0);
    let name = DATA_TYPES
        .iter()
        .find(|(number, _)| *number == raw.data_type);
    let first = |all: &[i64], count: usize| all.iter().take(count).copied().collect();
    Convolution {
        pass: match raw.kind {
            0 => Pass::Forward,
            1 => Pass::BackwardData,
            _ => Pass::BackwardFilter,
        },
        dtype: name.map_or_else(
            || format!("{UNNAMED}{}", raw.data_type),
            |(_, name)| (*name).to_owned(),
        ),
        operations: u32::try_from(raw.operations).unwrap_or(0),
        x: first(&raw.x, spatial + 2),
        x_strides: first(&raw.x_strides, spatial + 2),
        w: first(&raw.w, spatial + 2),
        y: first(&raw.y, spatial + 2),
        stride: first(&raw.stride, spatial),
        padding: first(&raw.padding, spatial),
        dilation: first(&raw.dilation, spatial),
    }
}

/// None where it has more dimensions than cuDNN knows, or an unknown dtype.
fn numbered(convolution: &Convolution) -> Option<c::Convolution> {
    let known = DATA_TYPES
        .iter()
        .find(|(_, name)| *name == convolution.dtype);
    let data_type = match known {
        Some((number, _)) => *number,
        None => convolution.dtype.strip_prefix(UNNAMED)?.parse().ok()?,
    };
    Some(c::Convolution {
        kind: match convolution.pass {
            Pass::Forward => 0,
            Pass::BackwardData => 1,
            Pass::BackwardFilter => 2,
        },
        data_type,
        spatial_dims: i32::try_from(convolution.stride.len()).ok()?,
        operations: i32::try_from(convolution.operations).ok()?,
        x: padded(&convolution.x)?,
        w: padded(&convolution.w)?,
        y: padded(&convolution.y)?,
        x_strides: padded(&convolution.x_strides)?,
        stride: padded(&convolution.stride)?,
        padding: padded(&convolution.padding)?,
        dilation: padded(&convolution.dilation)?,
    })
}

fn padded<const N: usize>(values: &[i64]) -> Option<[i64; N]> {
    let mut all = [0; N];
    all.get_mut(..values.len())?.copy_from_slice(values);
    Some(all)
}
