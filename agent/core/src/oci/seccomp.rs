//! System call filters.
//!
//! `RuntimeDefault` is what containerd's is (`contrib/seccomp/seccomp_default.go`, 2.3): everything is an error but what
//! is listed, and the capabilities that a process holds add what they are for.

use oci_spec::runtime::{
    Arch, Capability, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder,
    LinuxSeccompOperator, LinuxSyscall,
};

use super::ConfigError;

/// What every process may call.
const ALWAYS: &str = "\
    accept accept4 access adjtimex alarm bind brk cachestat capget capset chdir chmod chown chown32 \
    clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64 \
    clock_nanosleep clock_nanosleep_time64 close close_range connect copy_file_range creat dup dup2 dup3 \
    epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old \
    eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate \
    fanotify_mark fchdir fchmod fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64 fdatasync \
    fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync \
    ftruncate ftruncate64 futex futex_requeue futex_time64 futex_wait futex_waitv futex_wake futimesat \
    getcpu getcwd getdents getdents64 getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups \
    getgroups32 getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid \
    getresgid32 getresuid getresuid32 getrlimit get_robust_list getrusage getsid getsockname getsockopt \
    get_thread_area gettid gettimeofday getuid getuid32 getxattr getxattrat inotify_add_watch inotify_init \
    inotify_init1 inotify_rm_watch io_cancel ioctl io_destroy io_getevents io_pgetevents \
    io_pgetevents_time64 ioprio_get ioprio_set io_setup io_submit ipc kill landlock_add_rule \
    landlock_create_ruleset landlock_restrict_self lchown lchown32 lgetxattr link linkat listen listmount \
    listxattr listxattrat llistxattr _llseek lremovexattr lseek lsetxattr lsm_get_self_attr lsm_list_modules \
    lsm_set_self_attr lstat lstat64 madvise membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod \
    mknodat mlock mlock2 mlockall map_shadow_stack mmap mmap2 mprotect mq_getsetattr mq_notify mq_open \
    mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink mremap mseal msgctl \
    msgget msgrcv msgsnd msync munlock munlockall munmap name_to_handle_at nanosleep newfstatat _newselect \
    open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect \
    poll ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64 process_mrelease pselect6 pselect6_time64 \
    pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recv recvfrom recvmmsg \
    recvmmsg_time64 recvmsg remap_file_pages removexattr removexattrat rename renameat renameat2 \
    restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn \
    rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_getaffinity sched_getattr \
    sched_getparam sched_get_priority_max sched_get_priority_min sched_getscheduler sched_rr_get_interval \
    sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler \
    sched_yield seccomp select semctl semget semop semtimedop semtimedop_time64 send sendfile sendfile64 \
    sendmmsg sendmsg sendto setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 \
    setitimer setpgid setpriority setregid setregid32 setresgid setresgid32 setresuid setresuid32 setreuid \
    setreuid32 setrlimit set_robust_list setsid setsockopt set_thread_area set_tid_address setuid setuid32 \
    setxattr setxattrat shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 sigprocmask \
    sigreturn socketcall socketpair splice stat stat64 statfs statfs64 statmount statx symlink symlinkat \
    sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun \
    timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create timerfd_gettime \
    timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64 ugetrlimit umask \
    uname unlink unlinkat uretprobe utime utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid \
    waitpid write writev";

/// Values that `personality` may be given: Linux, 32-bit Linux, each with UNAME26, and the question for the current one.
const PERSONALITIES: [u64; 5] = [0x0, 0x0008, 0x20000, 0x20008, 0xffff_ffff];

/// The address family of the kernel's crypto, which no socket may have; those before it may.
const AF_ALG: u64 = 38;
/// The address families after it that sockets may have (`allowedSocketDomains` of `contrib/seccomp/seccomp_default.go`): not 40,
/// `AF_VSOCK`, which would leave the network namespace, and none that is not known yet.
const AFTER_ALG: [u64; 6] = [39, 41, 42, 43, 44, 45];

/// `CLONE_NEW*` of mount, cgroup, uts, ipc, user, pid and network namespaces.
const CLONE_NEW_ANY: u64 = 0x7e02_0000;

const ENOSYS: u32 = 38;

/// What a capability adds.
const OF_CAPABILITY: [(Capability, &str); 14] = [
    (Capability::DacReadSearch, "open_by_handle_at"),
    (
        Capability::SysAdmin,
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount mount_setattr move_mount \
         open_tree perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog umount umount2 unshare",
    ),
    (Capability::SysBoot, "reboot"),
    (Capability::SysChroot, "chroot"),
    (Capability::SysModule, "delete_module init_module finit_module"),
    (Capability::SysPacct, "acct"),
    (Capability::SysPtrace, "kcmp pidfd_getfd process_madvise process_vm_readv process_vm_writev ptrace"),
    (Capability::SysRawio, "iopl ioperm"),
    (Capability::SysTime, "settimeofday stime clock_settime clock_settime64"),
    (Capability::SysTtyConfig, "vhangup"),
    (Capability::SysNice, "get_mempolicy mbind set_mempolicy set_mempolicy_home_node"),
    (Capability::Syslog, "syslog"),
    (Capability::Bpf, "bpf"),
    (Capability::Perfmon, "perf_event_open"),
];

/// Machines that Berth runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Machine {
    X86_64,
    Aarch64,
}

impl Machine {
    /// What this agent was built for: containers run on the same.
    pub(super) const THIS: Self = if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 };

    fn architectures(self) -> Vec<Arch> {
        match self {
            Self::X86_64 => vec![Arch::ScmpArchX86_64, Arch::ScmpArchX86, Arch::ScmpArchX32],
            Self::Aarch64 => vec![Arch::ScmpArchArm, Arch::ScmpArchAarch64],
        }
    }

    fn own(self) -> &'static str {
        match self {
            Self::X86_64 => "arch_prctl modify_ldt",
            Self::Aarch64 => {
                "arm_fadvise64_64 arm_sync_file_range sync_file_range2 breakpoint cacheflush set_tls"
            }
        }
    }
}

/// The filter of `RuntimeDefault`, for a process that holds these capabilities. Every supported kernel checks `ptrace`
/// after seccomp (4.8), so it is allowed.
pub(super) fn default_profile(machine: Machine, held: &[Capability]) -> Result<LinuxSeccomp, ConfigError> {
    let mut rules = vec![allow(ALWAYS)];
    // One condition per rule: runtimes take several conditions on one argument for alternatives.
    rules.push(allow_if("socket", condition(LinuxSeccompOperator::ScmpCmpLt, AF_ALG)?));
    for family in AFTER_ALG {
        rules.push(allow_if("socket", condition(LinuxSeccompOperator::ScmpCmpEq, family)?));
    }
    for value in PERSONALITIES {
        rules.push(allow_if("personality", condition(LinuxSeccompOperator::ScmpCmpEq, value)?));
    }
    rules.push(allow("process_vm_readv process_vm_writev ptrace"));
    rules.push(allow(machine.own()));
    let added = OF_CAPABILITY.iter().filter(|(capability, _)| held.contains(capability));
    rules.extend(added.map(|(_, names)| allow(names)));
    if !held.contains(&Capability::SysAdmin) {
        // The bits that are masked must be 0, the second value's default.
        let masked = LinuxSeccompOperator::ScmpCmpMaskedEq;
        rules.push(allow_if("clone", condition(masked, CLONE_NEW_ANY)?));
        // Its flags are behind a pointer: C libraries take this answer as a reason to use clone instead.
        let mut clone3 = rule("clone3", LinuxSeccompAction::ScmpActErrno);
        clone3.set_errno_ret(Some(ENOSYS));
        rules.push(clone3);
    }
    let mut filter = LinuxSeccomp::default();
    filter
        .set_default_action(LinuxSeccompAction::ScmpActErrno)
        .set_architectures(Some(machine.architectures()))
        .set_syscalls(Some(rules));
    Ok(filter)
}

/// Stands in for a profile that is still to be read: whoever forgets to put the real one in its place starts nothing.
pub(super) fn deny_all() -> LinuxSeccomp {
    let mut filter = LinuxSeccomp::default();
    filter.set_default_action(LinuxSeccompAction::ScmpActKillProcess);
    filter
}

fn allow(names: &str) -> LinuxSyscall {
    rule(names, LinuxSeccompAction::ScmpActAllow)
}

fn allow_if(name: &str, condition: LinuxSeccompArg) -> LinuxSyscall {
    let mut rule = allow(name);
    rule.set_args(Some(vec![condition]));
    rule
}

fn rule(names: &str, action: LinuxSeccompAction) -> LinuxSyscall {
    let mut rule = LinuxSyscall::default();
    rule.set_names(names.split_whitespace().map(str::to_owned).collect()).set_action(action);
    rule
}

/// A condition on the first argument.
fn condition(operator: LinuxSeccompOperator, value: u64) -> Result<LinuxSeccompArg, ConfigError> {
    let condition = LinuxSeccompArgBuilder::default().index(0usize).value(value).value_two(0u64).op(operator);
    condition
        .build()
        .map_err(|error| ConfigError::Seccomp { path: "RuntimeDefault".to_owned(), why: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(machine: Machine, held: &[Capability]) -> LinuxSeccomp {
        default_profile(machine, held).unwrap()
    }

    fn names(filter: &LinuxSeccomp) -> Vec<&str> {
        filter.syscalls().iter().flatten().flat_map(|rule| rule.names()).map(String::as_str).collect()
    }

    fn rules<'a>(filter: &'a LinuxSeccomp, name: &str) -> Vec<&'a LinuxSyscall> {
        let all = filter.syscalls().iter().flatten();
        all.filter(|rule| rule.names().iter().any(|one| one == name)).collect()
    }

    #[test]
    fn what_is_not_listed_is_an_error() {
        let filter = profile(Machine::X86_64, &[]);
        assert_eq!(filter.default_action(), LinuxSeccompAction::ScmpActErrno);
        let names = names(&filter);
        for allowed in
            ["read", "execve", "openat2", "futex", "ptrace", "arch_prctl", "landlock_add_rule", "writev"]
        {
            assert!(names.contains(&allowed), "{allowed}");
        }
        for refused in [
            "mount",
            "unshare",
            "setns",
            "bpf",
            "keyctl",
            "add_key",
            "userfaultfd",
            "io_uring_setup",
            "kexec_load",
            "open_by_handle_at",
            "reboot",
            "chroot",
            "perf_event_open",
            "clock_settime",
            "init_module",
        ] {
            assert!(!names.contains(&refused), "{refused}");
        }
    }

    #[test]
    fn a_capability_adds_what_it_is_for() {
        for (capability, name) in [
            (Capability::DacReadSearch, "open_by_handle_at"),
            (Capability::SysAdmin, "mount"),
            (Capability::SysBoot, "reboot"),
            (Capability::SysChroot, "chroot"),
            (Capability::SysModule, "init_module"),
            (Capability::SysPacct, "acct"),
            (Capability::SysPtrace, "kcmp"),
            (Capability::SysRawio, "iopl"),
            (Capability::SysTime, "clock_settime"),
            (Capability::SysTtyConfig, "vhangup"),
            (Capability::SysNice, "mbind"),
            (Capability::Syslog, "syslog"),
            (Capability::Bpf, "bpf"),
            (Capability::Perfmon, "perf_event_open"),
        ] {
            assert!(names(&profile(Machine::X86_64, &[capability])).contains(&name), "{capability}");
            assert!(!names(&profile(Machine::X86_64, &[Capability::Chown])).contains(&name), "{capability}");
        }
    }

    #[test]
    fn new_namespaces_need_sys_admin() {
        let filter = profile(Machine::X86_64, &[]);
        let clone = rules(&filter, "clone");
        assert_eq!(clone.len(), 1);
        let condition = clone[0].args().as_ref().unwrap()[0];
        assert_eq!(condition.op(), LinuxSeccompOperator::ScmpCmpMaskedEq);
        assert_eq!((condition.index(), condition.value(), condition.value_two()), (0, 0x7e02_0000, Some(0)));
        let clone3 = rules(&filter, "clone3");
        assert_eq!(clone3[0].action(), LinuxSeccompAction::ScmpActErrno);
        assert_eq!(clone3[0].errno_ret(), Some(38));

        let filter = profile(Machine::X86_64, &[Capability::SysAdmin]);
        assert!(rules(&filter, "clone").iter().all(|rule| rule.args().is_none()));
        assert!(
            rules(&filter, "clone3").iter().all(|rule| rule.action() == LinuxSeccompAction::ScmpActAllow)
        );
    }

    #[test]
    fn sockets_of_some_families_match_no_rule() {
        let filter = profile(Machine::X86_64, &[]);
        let allowed = |family: u64| {
            rules(&filter, "socket").iter().any(|rule| {
                let condition = rule.args().as_ref().unwrap()[0];
                (condition.op() == LinuxSeccompOperator::ScmpCmpLt && family < condition.value())
                    || (condition.op() == LinuxSeccompOperator::ScmpCmpEq && family == condition.value())
            })
        };
        let refused: Vec<u64> = (0..50).filter(|family| !allowed(*family)).collect();
        assert_eq!(refused, [38, 40, 46, 47, 48, 49]);
    }

    #[test]
    fn each_machine_has_its_own() {
        let arm = profile(Machine::Aarch64, &[]);
        assert_eq!(arm.architectures().as_ref().unwrap(), &[Arch::ScmpArchArm, Arch::ScmpArchAarch64]);
        assert!(names(&arm).contains(&"set_tls") && !names(&arm).contains(&"arch_prctl"));
        let intel = profile(Machine::X86_64, &[]);
        assert!(names(&intel).contains(&"modify_ldt") && !names(&intel).contains(&"set_tls"));
    }

    #[test]
    fn no_name_is_listed_twice() {
        let filter = profile(Machine::X86_64, &[]);
        let mut always = filter.syscalls().as_ref().unwrap()[0].names().clone();
        let count = always.len();
        assert_eq!(count, 363);
        always.sort_unstable();
        always.dedup();
        assert_eq!(always.len(), count);
    }
}
