//! Small values of options.

use std::str::FromStr;
use std::time::Duration;

use crate::engine::protocol::Device;
use crate::tensor::DType;

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
    fn devices() {
        assert_eq!(parse_device("cuda:3"), Ok(Device::Cuda(3)));
        assert!(parse_device("cuda:x").is_err());
        assert!(parse_device("tpu").is_err());
    }
}
