//! The engine's confinement: after libtorch is open and before a model is, the process gives up what it does not need.
//!
//! TorchScript is a programming language with operators that open files, and a crafted file may find a hole in
//! libtorch. So the engine keeps the right to read the files of the request, libtorch and what describes the machine,
//! and to compute; it writes no file, opens no connection and starts no program. On Linux that is Landlock for files
//! and seccomp for system calls; what a kernel lacks is said in `hello`, never passed over. Memory and time are limited
//! by the front.
//!
//! An attempt to write a file fails, and is noticed ([`attempt`]): libtorch's own operators do not always look whether
//! they could.

use std::path::PathBuf;

/// What a task needs beyond computing.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// Files that are read.
    pub(crate) files: Vec<PathBuf>,
    /// Whether a real GPU is used: its driver opens devices and starts threads of its own.
    pub(crate) gpu: bool,
}

/// Confines this process for good and says what holds from now on.
pub(crate) fn confine(needs: &Needs) -> String {
    #[cfg(target_os = "linux")]
    {
        linux::confine(needs)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = needs;
        "none: it needs Linux".to_owned()
    }
}

/// The file that the model tried to write, where it did.
pub(crate) fn attempt() -> Option<String> {
    #[cfg(target_os = "linux")]
    {
        crate::ffi::barred::path()
    }
    #[cfg(not(target_os = "linux"))]
    {
        None
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};

    use landlock::{
        ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
        RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
    };
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule, TargetArch,
    };

    use super::Needs;

    /// The newest Landlock whose rights are asked for; an older kernel gives what it has.
    const LANDLOCK: ABI = ABI::V6;

    pub(super) fn confine(needs: &Needs) -> String {
        let files = match restrict_files(needs) {
            Ok(RulesetStatus::FullyEnforced) => "Landlock: no file is written, and only the request's files and libtorch are read".to_owned(),
            Ok(RulesetStatus::PartiallyEnforced) => "Landlock, as far as this kernel has it: no file is written, and only the request's files and libtorch are read".to_owned(),
            Ok(RulesetStatus::NotEnforced) => "no Landlock: this kernel lacks it, so files are not protected".to_owned(),
            Err(error) => format!("no Landlock, so files are not protected: {error}"),
        };
        let calls = match restrict_calls(needs.gpu) {
            Ok(()) => "seccomp: no network, no other programs".to_owned(),
            Err(error) => format!("no seccomp, so network and programs are not barred: {error}"),
        };
        format!("{files}; {calls}")
    }

    fn restrict_files(needs: &Needs) -> Result<RulesetStatus, RulesetError> {
        let read = AccessFs::from_read(LANDLOCK);
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(LANDLOCK))?
            .handle_access(AccessNet::from_all(LANDLOCK))?
            .scope(Scope::from_all(LANDLOCK))?
            .create()?
            .add_rules(path_beneath_rules(&needs.files, AccessFs::ReadFile))?
            .add_rules(path_beneath_rules(libraries(), read))?
            .add_rules(path_beneath_rules(MACHINE, read))?;
        if needs.gpu {
            ruleset = ruleset.add_rules(path_beneath_rules(
                GPU_DRIVER,
                AccessFs::from_file(LANDLOCK) | AccessFs::ReadDir,
            ))?;
        }
        Ok(ruleset.restrict_self()?.ruleset)
    }

    /// Where libraries describe themselves and the machine.
    const MACHINE: [&str; 9] = [
        "/proc/self",
        "/proc/cpuinfo",
        "/proc/meminfo",
        "/proc/stat",
        "/sys/devices/system",
        "/sys/fs/cgroup",
        "/dev/null",
        "/dev/urandom",
        "/etc/ld.so.cache",
    ];

    /// What NVIDIA's driver opens while it is used.
    const GPU_DRIVER: [&str; 4] = ["/dev", "/proc", "/sys", "/run/nvidia-persistenced"];

    /// Folders that libraries may still be loaded from: libtorch opens some only when they are first used.
    fn libraries() -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"]
            .map(PathBuf::from)
            .to_vec();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let libtorch = maps
            .lines()
            .filter_map(|line| line.find('/').and_then(|at| line.get(at..)))
            .map(Path::new)
            .find(|path| {
                path.file_name()
                    .is_some_and(|name| name == "libtorch_cpu.so")
            })
            .and_then(Path::parent);
        if let Some(folder) = libtorch {
            folders.push(folder.to_owned());
            // The wheel's NVIDIA libraries lie beside its folder `torch`.
            folders.extend(folder.ancestors().nth(2).map(|site| site.join("nvidia")));
        }
        folders
    }

    /// System calls that computing never needs; they fail with EPERM.
    const BARRED: &[i64] = &[
        // Network.
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_listen,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_sendmmsg,
        // Other programs and processes.
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_kill,
        libc::SYS_pidfd_open,
        libc::SYS_pidfd_getfd,
        libc::SYS_pidfd_send_signal,
        libc::SYS_process_madvise,
        // Files in ways that Landlock does not cover.
        libc::SYS_fchmod,
        libc::SYS_fchmodat,
        libc::SYS_fchown,
        libc::SYS_fchownat,
        libc::SYS_setxattr,
        libc::SYS_lsetxattr,
        libc::SYS_fsetxattr,
        libc::SYS_removexattr,
        libc::SYS_utimensat,
        libc::SYS_open_by_handle_at,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_unshare,
        libc::SYS_setns,
        // Doors into the kernel.
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_delete_module,
        libc::SYS_kexec_load,
        libc::SYS_reboot,
        libc::SYS_swapon,
        libc::SYS_swapoff,
        libc::SYS_acct,
        libc::SYS_quotactl,
        libc::SYS_shmget,
        libc::SYS_msgget,
        libc::SYS_mq_open,
    ];

    /// The older names that only x86-64 still has.
    #[cfg(target_arch = "x86_64")]
    const BARRED_OLD: &[i64] = &[
        libc::SYS_fork,
        libc::SYS_vfork,
        libc::SYS_chmod,
        libc::SYS_chown,
        libc::SYS_lchown,
        libc::SYS_utime,
        libc::SYS_utimes,
        libc::SYS_futimesat,
    ];
    #[cfg(not(target_arch = "x86_64"))]
    const BARRED_OLD: &[i64] = &[];

    /// Calls of NVIDIA's driver that a model on the CPU has no use for.
    const ALLOWED_FOR_GPU: &[i64] = &[libc::SYS_socket, libc::SYS_connect, libc::SYS_sendmsg];

    /// Calls that change files whatever their arguments.
    const CHANGING: &[i64] = &[
        libc::SYS_truncate,
        libc::SYS_unlinkat,
        libc::SYS_renameat2,
        libc::SYS_mkdirat,
        libc::SYS_symlinkat,
        libc::SYS_linkat,
        libc::SYS_mknodat,
    ];

    /// Their older names.
    #[cfg(target_arch = "x86_64")]
    const CHANGING_OLD: &[i64] = &[
        libc::SYS_creat,
        libc::SYS_unlink,
        libc::SYS_rename,
        libc::SYS_renameat,
        libc::SYS_mkdir,
        libc::SYS_rmdir,
        libc::SYS_symlink,
        libc::SYS_link,
        libc::SYS_mknod,
    ];
    #[cfg(not(target_arch = "x86_64"))]
    const CHANGING_OLD: &[i64] = &[];

    type Rules = BTreeMap<i64, Vec<SeccompRule>>;

    /// Calls that write files: those above, and opening for anything but reading.
    fn writing() -> Result<Rules, seccompiler::Error> {
        let mut rules: Rules = CHANGING
            .iter()
            .chain(CHANGING_OLD)
            .flat_map(|call| numbers(*call))
            .map(|call| (call, Vec::new()))
            .collect();
        #[cfg(target_arch = "x86_64")]
        let opening = [(libc::SYS_openat, 2), (libc::SYS_open, 1)];
        #[cfg(not(target_arch = "x86_64"))]
        let opening = [(libc::SYS_openat, 2)];
        for (call, flags) in opening {
            let mut cases = Vec::new();
            for (mask, value) in [
                (libc::O_ACCMODE, libc::O_WRONLY),
                (libc::O_ACCMODE, libc::O_RDWR),
                (libc::O_CREAT, libc::O_CREAT),
                (libc::O_TRUNC, libc::O_TRUNC),
            ] {
                let mask = u64::from(mask.unsigned_abs());
                let value = u64::from(value.unsigned_abs());
                let operator = SeccompCmpOp::MaskedEq(mask);
                let condition =
                    SeccompCondition::new(flags, SeccompCmpArgLen::Dword, operator, value)?;
                cases.push(SeccompRule::new(vec![condition])?);
            }
            rules.extend(numbers(call).map(|call| (call, cases.clone())));
        }
        Ok(rules)
    }

    fn restrict_calls(gpu: bool) -> Result<(), CallsError> {
        let arch =
            TargetArch::try_from(std::env::consts::ARCH).map_err(seccompiler::Error::from)?;
        let mut barred: Rules = BARRED
            .iter()
            .chain(BARRED_OLD)
            .filter(|call| !(gpu && ALLOWED_FOR_GPU.contains(call)))
            .flat_map(|call| numbers(*call))
            .map(|call| (call, Vec::new()))
            .collect();
        // A thread may be made, a process not.
        let process = SeccompRule::new(vec![
            SeccompCondition::new(
                0,
                SeccompCmpArgLen::Qword,
                SeccompCmpOp::MaskedEq(CLONE_THREAD),
                0,
            )
            .map_err(seccompiler::Error::from)?,
        ])
        .map_err(seccompiler::Error::from)?;
        for call in numbers(libc::SYS_clone) {
            barred.insert(call, vec![process.clone()]);
        }
        // These hide their flags in memory: the C library then falls back to the calls that do not.
        let hidden: Rules = [libc::SYS_clone3, libc::SYS_openat2]
            .into_iter()
            .flat_map(numbers)
            .map(|call| (call, Vec::new()))
            .collect();
        let errno = |number: i32| SeccompAction::Errno(number.unsigned_abs());
        let mut filters = vec![(hidden, errno(libc::ENOSYS)), (barred, errno(libc::EPERM))];
        if !gpu {
            crate::ffi::barred::watch()?; // a GPU's driver opens its devices for writing
            filters.push((writing()?, SeccompAction::Trap));
        }
        for (rules, action) in filters {
            let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch)
                .map_err(seccompiler::Error::from)?;
            let program = BpfProgram::try_from(filter).map_err(seccompiler::Error::from)?;
            seccompiler::apply_filter_all_threads(&program)?;
        }
        Ok(())
    }

    /// Why system calls are not restricted.
    #[derive(Debug, thiserror::Error)]
    enum CallsError {
        #[error(transparent)]
        Filter(#[from] seccompiler::Error),
        #[error(transparent)]
        Handler(#[from] std::io::Error),
    }

    const CLONE_THREAD: u64 = libc::CLONE_THREAD.unsigned_abs() as u64;

    /// A call's number, and on x86-64 the one under which the x32 interface knows it.
    fn numbers(call: i64) -> impl Iterator<Item = i64> {
        let x32 = cfg!(target_arch = "x86_64").then_some(call | 0x4000_0000);
        std::iter::once(call).chain(x32)
    }
}
