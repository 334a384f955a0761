//! `inspect doctor`: what is installed, or what to do.

use std::io::{self, Write};

use serde::Serialize;

use super::{Context, Exit, Failure, engine_options};
use crate::engine::protocol::{BUILD_ID, DeviceInfo, Hello, PROTOCOL, Progress, Request, Task};
use crate::engine::{EngineError, Observer, ask, stand_ins};
use crate::text::escape;
use crate::ui::Target;
use crate::units::Units;

/// What was found.
#[derive(Debug, Serialize)]
struct Findings {
    version: &'static str,
    build_id: &'static str,
    engine: Option<String>,
    libtorch_version: Option<String>,
    devices: Vec<DeviceInfo>,
    simulated_device: SimulatedDevice,
    sandbox: Option<String>,
    problem: Option<String>,
    hint: Option<String>,
}

/// The simulated CUDA device.
#[derive(Debug, Serialize)]
struct SimulatedDevice {
    /// Why there is none; none where it is ready.
    unavailable: Option<&'static str>,
}

/// Nothing is shown while the engine says hello.
struct Silent;

impl Observer for Silent {
    fn progress(&mut self, _progress: &Progress) {}

    fn trace_line(&mut self, _line: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Err("a trace was not asked for".into())
    }
}

/// Starts the engine, hears its hello and says what it is.
pub(super) fn doctor(json: bool, context: &Context) -> Result<Exit, Failure> {
    let options = engine_options();
    let request = Request {
        protocol: PROTOCOL,
        task: Task::Hello,
        threads: None,
        copy: None,
    };
    let answer = context
        .interrupt
        .by_flag(|interrupted| ask(&request, &options, &mut Silent, interrupted));
    if matches!(answer, Err(EngineError::Interrupted)) {
        return Err(EngineError::Interrupted.into());
    }
    let engine = options.locate().ok().map(|path| path.display().to_string());
    let (hello, problem) = match answer {
        Ok(answer) => (Some(answer.hello), None),
        Err(error) => (None, Some(error)),
    };
    let findings = findings(engine, hello, problem.as_ref());
    Target::Stdout.write(|out| {
        if json {
            serde_json::to_writer_pretty(&mut *out, &findings)?;
            writeln!(out)
        } else {
            table(&findings, out)
        }
    })?;
    Ok(if problem.is_some() {
        Exit::ENGINE
    } else {
        Exit::OK
    })
}

fn findings(
    engine: Option<String>,
    hello: Option<Hello>,
    problem: Option<&EngineError>,
) -> Findings {
    let (libtorch_version, devices, sandbox) = match hello {
        Some(hello) => (Some(hello.libtorch_version), hello.devices, hello.sandbox),
        None => (None, Vec::new(), None),
    };
    Findings {
        version: env!("CARGO_PKG_VERSION"),
        build_id: BUILD_ID,
        engine,
        libtorch_version,
        devices,
        simulated_device: SimulatedDevice {
            unavailable: stand_ins::unavailable(),
        },
        sandbox,
        problem: problem.map(|error| {
            let mut text = error.to_string();
            for detail in error.details() {
                text.push_str("; ");
                text.push_str(&detail);
            }
            text
        }),
        hint: problem.and_then(EngineError::hint),
    }
}

fn table(findings: &Findings, out: &mut dyn Write) -> io::Result<()> {
    let mut line = |name: &str, text: &str| writeln!(out, "{name:<10}{}", escape(text));
    line(
        "inspect",
        &format!("{} (build {})", findings.version, findings.build_id),
    )?;
    line("engine", findings.engine.as_deref().unwrap_or("not found"))?;
    if let Some(version) = &findings.libtorch_version {
        line("libtorch", version)?;
        for device in &findings.devices {
            line(&device.id, &device_text(device))?;
        }
        let simulated = findings.simulated_device.unavailable;
        line("cuda-sim", &ready_or(simulated))?;
        line("sandbox", findings.sandbox.as_deref().unwrap_or("none"))?;
    }
    if let Some(problem) = &findings.problem {
        line("problem", problem)?;
    }
    if let Some(hint) = &findings.hint {
        line("to do", hint)?;
    }
    Ok(())
}

fn ready_or(unavailable: Option<&str>) -> String {
    match unavailable {
        None => "ready".to_owned(),
        Some(reason) => format!("not available: {reason}"),
    }
}

fn device_text(device: &DeviceInfo) -> String {
    let mut text = ready_or(device.unavailable.as_deref());
    if device.unavailable.is_some() {
        return text;
    }
    if let Some(name) = &device.name {
        text.push_str(": ");
        text.push_str(name);
    }
    if let Some(bytes) = device.total_bytes {
        text.push_str(", ");
        text.push_str(&Units::Iec.bytes(bytes));
    }
    text
}
