//! Small values of options.

use std::str::FromStr;
use std::time::Duration;

use crate::engine::protocol::Device;
use crate::tensor::DType;
use crate::units::ByteSize;

/// A duration as typed: `90`, `90s`, `1.5m`, `2h`, `500ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurationArg(pub Duration);

/// Why a duration could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a duration: expected a positive number with `ms`, `s`, `m` or `h`, such as `90s`"
)]
pub struct ParseDurationError(String);

impl FromStr for DurationArg {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseDurationError(text.to_owned());
        let split = text
            .find(|c: char| !(c.is_ascii_digit() || c == '.'))
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let seconds = match unit.trim() {
            "ms" => 1e-3,
            "" | "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        Duration::try_from_secs_f64(number * seconds)
            .ok()
            .filter(|duration| !duration.is_zero())
            .map(DurationArg)
            .ok_or_else(wrong)
    }
}

/// Reads a dtype by PyTorch's name or a short one.
pub(super) fn parse_dtype(text: &str) -> Result<DType, String> {
    DType::parse(text).ok_or_else(|| {
        format!("PyTorch has no dtype `{text}`: expected a name such as `bfloat16` or `bf16`")
    })
}

/// Reads a dtype that weights can be converted to: `nn.Module.to` takes floating and complex ones only.
pub(super) fn parse_cast(text: &str) -> Result<DType, String> {
    let dtype = parse_dtype(text)?;
    if dtype.is_floating_point() || dtype.is_complex() {
        return Ok(dtype);
    }
    Err(format!(
        "a module's weights cannot be converted to `{}`: expected a floating-point dtype such as `bfloat16`",
        dtype.name()
    ))
}

/// Reads a dtype of autocast.
pub(super) fn parse_autocast(text: &str) -> Result<DType, String> {
    let dtype = parse_dtype(text)?;
    match dtype {
        DType::Float16 | DType::BFloat16 => Ok(dtype),
        _ => Err(format!(
            "autocast does not run in `{}`: expected `bfloat16` or `float16`",
            dtype.name()
        )),
    }
}

/// Reads a size of memory.
pub(super) fn parse_memory(text: &str) -> Result<ByteSize, String> {
    match text.parse::<ByteSize>() {
        Ok(ByteSize(0)) => Err("expected more than 0 bytes, such as `8GiB`".to_owned()),
        Ok(size) => Ok(size),
        Err(error) => Err(error.to_string()),
    }
}

/// Reads `cpu`, `cuda`, `cuda:1`, `cuda-sim`.
pub(super) fn parse_device(text: &str) -> Result<Device, String> {
    match text {
        "cpu" => Ok(Device::Cpu),
        "cuda" => Ok(Device::Cuda(0)),
        "cuda-sim" => Ok(Device::CudaSim),
        _ => text
            .strip_prefix("cuda:")
            .and_then(|index| index.parse().ok())
            .map(Device::Cuda)
            .ok_or_else(|| "expected `cpu`, `cuda`, `cuda:N` or `cuda-sim`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_people_type_them() {
        let ms = |text: &str| text.parse::<DurationArg>().map(|d| d.0.as_millis());
        assert_eq!(ms("90"), Ok(90_000));
        assert_eq!(ms("1.5m"), Ok(90_000));
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms("2h"), Ok(7_200_000));
        for wrong in ["", "s", "-5", "0", "1d", "1e99", "1.2.3"] {
            assert!(ms(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn dtypes_that_weights_and_autocast_take() {
        assert_eq!(parse_cast("bf16"), Ok(DType::BFloat16));
        assert_eq!(parse_cast("complex64"), Ok(DType::Complex64));
        assert_eq!(parse_autocast("float16"), Ok(DType::Float16));
        for wrong in ["int8", "bool", "qint8"] {
            assert!(parse_cast(wrong).is_err(), "{wrong}");
        }
        assert!(parse_autocast("float64").is_err());
    }

    #[test]
    fn memory_is_more_than_nothing() {
        assert_eq!(parse_memory("1k"), Ok(ByteSize(1024)));
        assert!(parse_memory("0").is_err());
        assert!(parse_memory("0GiB").is_err());
    }

    #[test]
    fn devices() {
        assert_eq!(parse_device("cuda:3"), Ok(Device::Cuda(3)));
        assert!(parse_device("cuda:x").is_err());
        assert!(parse_device("tpu").is_err());
    }
}
