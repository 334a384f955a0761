//! Every way in which an engine can misbehave, played by small shell scripts.

use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::protocol::{BUILD_ID, FailureKind, PROTOCOL, Progress, Request, Task};
use super::{Answer, EngineError, EngineOptions, Exit, Observer, ask, ask_both};

/// One engine at a time: a script must not be open for writing in a child that another thread forks.
static ONE: Mutex<()> = Mutex::new(());

#[derive(Default)]
struct Seen {
    trace: Vec<String>,
    stages: Vec<String>,
    refuse: bool,
}

impl Observer for Seen {
    fn progress(&mut self, progress: &Progress) {
        self.stages.push(progress.stage.clone());
    }

    fn trace_line(&mut self, line: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        if self.refuse {
            return Err("unknown event".into());
        }
        self.trace.push(line.to_owned());
        Ok(())
    }
}

fn hello() -> String {
    format!(
        r#"echo '{{"type":"hello","protocol":{PROTOCOL},"build_id":"{BUILD_ID}","libtorch_version":"2.11.0","devices":[],"sandbox":null}}'"#
    )
}

const DONE: &str =
    r#"echo '{"type":"done","trace_lines":0,"signature":null,"module_tensors":null}'"#;

fn request() -> Request {
    Request {
        protocol: PROTOCOL,
        task: Task::Hello,
        threads: None,
        copy: None,
    }
}

fn write_engine(folder: &Path, script: &str) -> std::path::PathBuf {
    let path = folder.join("engine");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn run_with(
    script: &str,
    change: impl FnOnce(&mut EngineOptions),
    seen: &mut Seen,
) -> Result<Answer, EngineError> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let mut options = EngineOptions {
        program: Some(write_engine(folder.path(), script)),
        ..EngineOptions::default()
    };
    change(&mut options);
    ask(&request(), &options, seen, &AtomicBool::new(false))
}

fn run(script: &str) -> Result<Answer, EngineError> {
    run_with(script, |_| {}, &mut Seen::default())
}

#[test]
fn a_good_engine_is_heard_out() {
    let script = format!(
        "read request; {}\n\
         echo '{{\"type\":\"progress\",\"stage\":\"loading\",\"done\":1,\"total\":null}}'\n\
         echo '{{\"op\":{{\"n\":1}}}}'; echo '{{\"op\":{{\"n\":2}}}}'\n\
         echo '{{\"type\":\"done\",\"trace_lines\":2,\"signature\":null,\"module_tensors\":null}}'",
        hello()
    );
    let mut seen = Seen::default();
    let answer = run_with(&script, |_| {}, &mut seen).unwrap();
    assert_eq!(answer.hello.libtorch_version, "2.11.0");
    assert_eq!(answer.done.trace_lines, 2);
    assert_eq!(seen.trace, [r#"{"op":{"n":1}}"#, r#"{"op":{"n":2}}"#]);
    assert_eq!(seen.stages, ["loading"]);
}

#[test]
fn the_engine_reads_the_request_and_its_environment() {
    let script = format!(
        "read request\n[ \"$request\" = '{}' ] || exit 9\n[ \"$OMP_WAIT_POLICY\" = passive ] || exit 8\n\
         [ \"$EXTRA\" = 1 ] || exit 7\n{}\n{DONE}",
        serde_json::to_string(&request()).unwrap(),
        hello()
    );
    let extra = |options: &mut EngineOptions| options.env.push(("EXTRA".to_owned(), "1".into()));
    run_with(&script, extra, &mut Seen::default()).unwrap();
}

#[test]
fn no_engine() {
    let options = EngineOptions {
        program: Some("/nowhere/inspect-torch".into()),
        ..EngineOptions::default()
    };
    let error = ask(
        &request(),
        &options,
        &mut Seen::default(),
        &AtomicBool::new(false),
    );
    assert!(matches!(error, Err(EngineError::NotFound { .. })));
}

#[test]
fn an_engine_that_cannot_be_started() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine");
    fs::write(&path, "not a program").unwrap();
    let options = EngineOptions {
        program: Some(path),
        ..EngineOptions::default()
    };
    let error = ask(
        &request(),
        &options,
        &mut Seen::default(),
        &AtomicBool::new(false),
    );
    assert!(matches!(error, Err(EngineError::Start { .. })));
}

#[test]
fn no_hello() {
    let error = run("echo 'cannot open libtorch.so' >&2; exit 127").unwrap_err();
    assert!(matches!(
        error,
        EngineError::NoHello {
            exit: Exit::Code(127),
            ..
        }
    ));
    assert_eq!(error.details(), ["cannot open libtorch.so"]);
    assert!(error.hint().unwrap().contains("scripts/setup"));
}

#[test]
fn wrong_protocol_whatever_else_the_hello_says() {
    let error = run(r#"echo '{"type":"hello","protocol":99,"novelty":true}'"#).unwrap_err();
    assert!(matches!(error, EngineError::Protocol { theirs: 99, .. }));
}

#[test]
fn wrong_build() {
    let script = hello().replace(BUILD_ID, "0.0.1-feed");
    let error = run(&format!("{script}\n{DONE}")).unwrap_err();
    assert!(error.to_string().contains("`0.0.1-feed`"), "{error}");
    assert!(error.to_string().contains(BUILD_ID), "{error}");
}

#[test]
fn rubbish_on_stdout() {
    for rubbish in [
        "echo 'WARNING: hi'",
        "printf '\\377\\376\\n'",
        "echo",
        "echo '{\"type\":\"op\"}'",
        "echo '[1]'",
    ] {
        let error = run(&format!("{}\n{rubbish}\n{DONE}", hello())).unwrap_err();
        assert!(
            matches!(error, EngineError::NotProtocol { line: 2, .. }),
            "{rubbish}: {error}"
        );
    }
}

#[test]
fn a_known_type_with_unknown_contents() {
    let error = run(&format!("{}\necho '{{\"type\":\"done\"}}'", hello())).unwrap_err();
    assert!(matches!(error, EngineError::NotProtocol { line: 2, .. }));
}

#[test]
fn lines_in_the_wrong_place() {
    let early = run(r#"echo '{"op":1}'"#).unwrap_err();
    assert!(matches!(
        early,
        EngineError::Misplaced {
            line: 1,
            expected: "`hello`",
            ..
        }
    ));
    let twice = run(&format!("{0}\n{0}", hello())).unwrap_err();
    assert!(matches!(
        twice,
        EngineError::Misplaced {
            line: 2,
            expected: "no second hello",
            ..
        }
    ));
    let late = run(&format!("{}\n{DONE}\necho '{{\"op\":1}}'", hello())).unwrap_err();
    assert!(matches!(
        late,
        EngineError::Misplaced {
            line: 3,
            expected: "nothing after `done`",
            ..
        }
    ));
}

#[test]
fn a_megabyte_on_stderr_neither_blocks_nor_is_kept() {
    let script = format!(
        "read request; {}\nhead -c 1048576 /dev/zero | tr '\\0' 'x' >&2; echo >&2; echo last words >&2; exit 4",
        hello()
    );
    let error = run(&script).unwrap_err();
    assert!(matches!(
        error,
        EngineError::Crashed {
            exit: Exit::Code(4),
            ..
        }
    ));
    let EngineError::Crashed { stderr, .. } = &error else {
        unreachable!()
    };
    assert!(stderr.len() <= 64 << 10);
    assert_eq!(
        error.details().last().map(String::as_str),
        Some("last words")
    );
}

#[test]
fn a_killed_engine_is_named_with_signal_and_stage() {
    let progress = r#"echo '{"type":"progress","stage":"running forward","done":0,"total":null}'"#;
    let error = run(&format!("{}\n{progress}\nkill -SEGV $$", hello())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the engine was killed by SIGSEGV (signal 11) while running forward"
    );
}

#[test]
fn cut_off_in_the_middle_of_a_line() {
    let error = run(&format!("{}\nprintf '{{\"op\":1,'; kill -KILL $$", hello())).unwrap_err();
    assert!(
        matches!(
            error,
            EngineError::Crashed {
                exit: Exit::Signal(9),
                ..
            }
        ),
        "{error}"
    );
    let error = run(&format!("{}\nprintf 'bye'", hello())).unwrap_err();
    assert!(
        matches!(error, EngineError::NotProtocol { line: 2, .. }),
        "{error}"
    );
}

#[test]
fn exit_without_done() {
    let error = run(&format!("read request; {}", hello())).unwrap_err();
    assert!(matches!(
        error,
        EngineError::Crashed {
            exit: Exit::Code(0),
            ..
        }
    ));
}

#[test]
fn lost_trace_lines() {
    let script = format!(
        "{}\necho '{{\"op\":1}}'\necho '{{\"type\":\"done\",\"trace_lines\":5}}'",
        hello()
    );
    let error = run(&script).unwrap_err();
    assert!(
        matches!(
            error,
            EngineError::TraceLines {
                said: 5,
                counted: 1
            }
        ),
        "{error}"
    );
}

#[test]
fn a_trace_line_the_reader_refuses() {
    let script = format!("{}\necho '{{\"op\":1}}'\n{DONE}", hello());
    let mut seen = Seen {
        refuse: true,
        ..Seen::default()
    };
    let error = run_with(&script, |_| {}, &mut seen).unwrap_err();
    assert!(matches!(error, EngineError::Trace { line: 2, .. }));
    assert_eq!(error.source().unwrap().to_string(), "unknown event");
}

#[test]
fn failed_with_a_reason() {
    let script = format!(
        "{}\necho '{{\"type\":\"failed\",\"kind\":\"no_such_method\",\"message\":\"the module has no method `f`\"}}'",
        hello()
    );
    let error = run(&script).unwrap_err();
    assert_eq!(error.to_string(), "the module has no method `f`");
    assert!(
        matches!(error, EngineError::Failed(failed) if failed.kind == FailureKind::NoSuchMethod)
    );
}

/// The process ids a script wrote to `pids` before it fell silent.
fn pids(folder: &Path) -> Vec<i32> {
    let text = fs::read_to_string(folder.join("pids")).unwrap();
    text.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

fn alive(pid: i32) -> bool {
    // A zombie that nobody has reaped yet is dead too.
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap_or("")
            .trim_start()
            .starts_with('Z')
    })
}

fn assert_all_dead(folder: &Path) {
    let deadline = Instant::now() + Duration::from_secs(5);
    let pids = pids(folder);
    assert_eq!(pids.len(), 2);
    while pids.iter().any(|pid| alive(*pid)) {
        assert!(Instant::now() < deadline, "left behind: {pids:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_silent_engine_runs_into_the_timeout_and_leaves_nobody() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "{}\nsleep 1000 &\necho $$ $! > {}/pids\nwait",
        hello(),
        folder.path().display()
    );
    let options = EngineOptions {
        program: Some(write_engine(folder.path(), &script)),
        timeout: Some(Duration::from_millis(700)),
        ..EngineOptions::default()
    };
    let error = ask(
        &request(),
        &options,
        &mut Seen::default(),
        &AtomicBool::new(false),
    )
    .unwrap_err();
    assert!(matches!(error, EngineError::Timeout { .. }), "{error}");
    assert_all_dead(folder.path());
}

#[test]
fn an_interrupt_leaves_nobody() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "{}\nsleep 1000 &\necho $$ $! > {}/pids\nwait",
        hello(),
        folder.path().display()
    );
    let options = EngineOptions {
        program: Some(write_engine(folder.path(), &script)),
        ..EngineOptions::default()
    };
    let interrupted = AtomicBool::new(false);
    let ready = folder.path().join("pids");
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            while fs::read_to_string(&ready).map_or(true, |text| !text.ends_with('\n')) {
                std::thread::sleep(Duration::from_millis(5));
            }
            interrupted.store(true, Ordering::Relaxed);
        });
        ask(&request(), &options, &mut Seen::default(), &interrupted).unwrap_err()
    });
    assert!(matches!(error, EngineError::Interrupted));
    assert_all_dead(folder.path());
}

#[test]
fn an_answer_does_not_wait_for_what_the_engine_left_running() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "{}\nsleep 1000 &\necho $$ $! > {}/pids\n{DONE}",
        hello(),
        folder.path().display()
    );
    let options = EngineOptions {
        program: Some(write_engine(folder.path(), &script)),
        ..EngineOptions::default()
    };
    let start = Instant::now();
    ask(
        &request(),
        &options,
        &mut Seen::default(),
        &AtomicBool::new(false),
    )
    .unwrap();
    assert!(start.elapsed() < Duration::from_secs(30));
    assert_all_dead(folder.path());
}

#[cfg(target_os = "linux")]
#[test]
fn the_memory_limit_reaches_the_engine() {
    let script = format!(
        "read request; [ \"$(ulimit -d)\" = 1048576 ] || exit 9\n{}\n{DONE}",
        hello()
    );
    let limit = |options: &mut EngineOptions| options.memory_limit = Some(1 << 30);
    run_with(&script, limit, &mut Seen::default()).unwrap();
}

#[test]
fn a_long_trace_arrives_whole_and_fast() {
    let script = format!(
        "read request; {}\nyes '{{\"op\":1,\"name\":\"aten::conv2d\",\"inputs\":[1,2,3,4]}}' | head -n 300000\n\
         echo '{{\"type\":\"done\",\"trace_lines\":300000,\"signature\":null,\"module_tensors\":null}}'",
        hello()
    );
    let mut seen = Seen::default();
    run_with(&script, |_| {}, &mut seen).unwrap();
    assert_eq!(seen.trace.len(), 300_000);
}

#[test]
fn a_line_without_end_is_given_up() {
    let script = format!("{}\ntr '\\0' '{{' < /dev/zero", hello());
    let error = run(&script).unwrap_err();
    assert!(
        matches!(error, EngineError::LineTooLong { line: 2, .. }),
        "{error}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn an_engine_that_runs_out_of_its_memory() {
    let script = format!(
        "{}\necho \"  what():  std::bad_alloc\" >&2; kill -ABRT $$",
        hello()
    );
    let limit = |options: &mut EngineOptions| options.memory_limit = Some(1 << 30);
    let error = run_with(&script, limit, &mut Seen::default()).unwrap_err();
    assert!(
        matches!(
            error,
            EngineError::OutOfLimit {
                limit: 1_073_741_824,
                ..
            }
        ),
        "{error}"
    );
    let error = run(&script).unwrap_err();
    assert!(matches!(error, EngineError::Crashed { .. }), "{error}");
}

/// Two things at once: what the engine says on stdout, and what its copy says on stdin.
fn run_both(
    script: &str,
    seen: [&mut Seen; 2],
) -> Result<(Answer, Result<Answer, EngineError>), EngineError> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        program: Some(write_engine(folder.path(), script)),
        ..EngineOptions::default()
    };
    let request = Request {
        copy: Some(Task::Hello),
        ..request()
    };
    let [first, copy] = seen;
    ask_both(&request, &options, first, copy, &AtomicBool::new(false))
}

#[test]
fn a_copy_is_heard_beside_its_engine() {
    // The copy takes longer than an engine has after its last line.
    let done = |lines: u32| {
        format!(
            r#"echo '{{"type":"done","trace_lines":{lines},"signature":null,"module_tensors":null}}'"#
        )
    };
    let script = format!(
        "read request; exec 3>&0\n( {hello}; sleep 4; echo '{{\"op\":{{\"n\":2}}}}'; {one} ) >&3 3>&- &\n\
         {hello}; echo '{{\"op\":{{\"n\":1}}}}'; {one}; exec 0<&- 3>&-; wait",
        hello = hello(),
        one = done(1),
    );
    let (mut first, mut copy) = (Seen::default(), Seen::default());
    let (answer, copied) = run_both(&script, [&mut first, &mut copy]).unwrap();
    assert_eq!(answer.done.trace_lines, 1);
    assert_eq!(copied.unwrap().done.trace_lines, 1);
    assert_eq!(first.trace, [r#"{"op":{"n":1}}"#]);
    assert_eq!(copy.trace, [r#"{"op":{"n":2}}"#]);
}

#[test]
fn a_copy_that_is_not_made_says_nothing() {
    let script = format!("read request; exec 0<&-; {}; {DONE}", hello());
    let (mut first, mut copy) = (Seen::default(), Seen::default());
    let (_, copied) = run_both(&script, [&mut first, &mut copy]).unwrap();
    assert!(
        matches!(copied, Err(EngineError::NoHello { .. })),
        "{copied:?}"
    );
}

#[test]
fn a_copy_ends_with_its_engine() {
    let script = format!(
        "read request; exec 3>&0\n( {hello}; sleep 60 ) >&3 &\n{hello}; exit 3",
        hello = hello()
    );
    let (mut first, mut copy) = (Seen::default(), Seen::default());
    let started = Instant::now();
    let outcome = run_both(&script, [&mut first, &mut copy]);
    assert!(
        matches!(outcome, Err(EngineError::Crashed { .. })),
        "{outcome:?}"
    );
    assert!(started.elapsed() < Duration::from_secs(20));
}
