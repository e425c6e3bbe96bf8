//! The tables of functions that net plug-ins export, as C lays them out: versions 6 to 12. Each has the members of the
//! one before, with other arguments, and some more behind them.
//!
//! Any member may be NULL for all that is known of a file. [`NetHead`] has what must be there from the beginning. A
//! plug-in that can work in several ways fills in the rest of its table when it is initialised: [`NetCalls`] has the
//! functions that are used, none of them NULL.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

use crate::plugin::logger::{PluginLogger, ProfilerCallback};

/// `ncclNetCommConfig_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NetCommConfig {
    /// -1 where nobody says.
    pub traffic_class: c_int,
}

type CommPointer = *mut c_void;
/// Where a function puts a connection, memory or request.
type OutPointer = *mut *mut c_void;
type HandlePointer = *mut c_void;

type InitV6 = unsafe extern "C" fn(PluginLogger) -> c_int;
type InitV10 = unsafe extern "C" fn(PluginLogger, ProfilerCallback) -> c_int;
type InitV11 = unsafe extern "C" fn(OutPointer, u64, *mut NetCommConfig, PluginLogger, ProfilerCallback) -> c_int;
type ListenV6 = unsafe extern "C" fn(c_int, HandlePointer, OutPointer) -> c_int;
type ListenV11 = unsafe extern "C" fn(*mut c_void, c_int, HandlePointer, OutPointer) -> c_int;
type ConnectV6 = unsafe extern "C" fn(c_int, HandlePointer, OutPointer) -> c_int;
type ConnectV7 = unsafe extern "C" fn(c_int, HandlePointer, OutPointer, OutPointer) -> c_int;
type ConnectV10 = unsafe extern "C" fn(c_int, *mut NetCommConfig, HandlePointer, OutPointer, OutPointer) -> c_int;
type ConnectV11 = unsafe extern "C" fn(*mut c_void, c_int, HandlePointer, OutPointer, OutPointer) -> c_int;
type AcceptV6 = unsafe extern "C" fn(CommPointer, OutPointer) -> c_int;
type AcceptV7 = unsafe extern "C" fn(CommPointer, OutPointer, OutPointer) -> c_int;
type RegMrV6 = unsafe extern "C" fn(CommPointer, *mut c_void, c_int, c_int, OutPointer) -> c_int;
type RegMrV8 = unsafe extern "C" fn(CommPointer, *mut c_void, usize, c_int, OutPointer) -> c_int;
type IsendV6 = unsafe extern "C" fn(CommPointer, *mut c_void, c_int, c_int, *mut c_void, OutPointer) -> c_int;
type IsendV9 = unsafe extern "C" fn(CommPointer, *mut c_void, usize, c_int, *mut c_void, OutPointer) -> c_int;
type IsendV10 =
    unsafe extern "C" fn(CommPointer, *mut c_void, usize, c_int, *mut c_void, *mut c_void, OutPointer) -> c_int;
type IrecvV6 =
    unsafe extern "C" fn(CommPointer, c_int, OutPointer, *mut c_int, *mut c_int, OutPointer, OutPointer) -> c_int;
type IrecvV9 =
    unsafe extern "C" fn(CommPointer, c_int, OutPointer, *mut usize, *mut c_int, OutPointer, OutPointer) -> c_int;
type IrecvV10 = unsafe extern "C" fn(
    CommPointer,
    c_int,
    OutPointer,
    *mut usize,
    *mut c_int,
    OutPointer,
    OutPointer,
    OutPointer,
) -> c_int;
type Devices = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetProperties = unsafe extern "C" fn(c_int, *mut c_void) -> c_int;
type DeregMr = unsafe extern "C" fn(CommPointer, *mut c_void) -> c_int;
type Test = unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> c_int;
type Close = unsafe extern "C" fn(CommPointer) -> c_int;

/// A member that is not used here; it may have any type, and be NULL.
type Unused = *const c_void;

/// The members that all versions have.
#[repr(C)]
pub struct NetTable<Init, Listen, Connect, Accept, RegMr, Isend, Irecv> {
    name: *const c_char,
    init: Option<Init>,
    devices: Option<Devices>,
    get_properties: Option<GetProperties>,
    listen: Option<Listen>,
    connect: Option<Connect>,
    accept: Option<Accept>,
    reg_mr: Option<RegMr>,
    reg_mr_dma_buf: Unused,
    dereg_mr: Option<DeregMr>,
    isend: Option<Isend>,
    irecv: Option<Irecv>,
    iflush: Unused,
    test: Option<Test>,
    close_send: Option<Close>,
    close_recv: Option<Close>,
    close_listen: Option<Close>,
}

/// `ncclNet_v6_t`.
pub type NetTableV6 = NetTable<InitV6, ListenV6, ConnectV6, AcceptV6, RegMrV6, IsendV6, IrecvV6>;

/// What version 7 has added.
#[repr(C)]
pub struct NetTableV7<T> {
    base: T,
    get_device_mr: Unused,
    irecv_consumed: Unused,
}

/// `ncclNet_v7_t`.
type WholeV7 = NetTableV7<NetTable<InitV6, ListenV6, ConnectV7, AcceptV7, RegMrV6, IsendV6, IrecvV6>>;
/// `ncclNet_v8_t`.
type WholeV8 = NetTableV7<NetTable<InitV6, ListenV6, ConnectV7, AcceptV7, RegMrV8, IsendV6, IrecvV6>>;

/// What version 9 has added.
#[repr(C)]
pub struct NetTableV9<T> {
    base: NetTableV7<T>,
    make_v_device: Unused,
}

/// `ncclNet_v9_t`.
type WholeV9 = NetTableV9<NetTable<InitV6, ListenV6, ConnectV7, AcceptV7, RegMrV8, IsendV9, IrecvV9>>;
/// `ncclNet_v10_t`.
type WholeV10 = NetTableV9<NetTable<InitV10, ListenV6, ConnectV10, AcceptV7, RegMrV8, IsendV10, IrecvV10>>;

/// What version 11 has added.
#[repr(C)]
pub struct NetTableV11<T> {
    base: NetTableV9<T>,
    finalize: Option<Close>,
    set_net_attr: Unused,
}

/// `ncclNet_v11_t`, and `ncclNet_v12_t`.
type WholeV11 = NetTableV11<NetTable<InitV11, ListenV11, ConnectV11, AcceptV7, RegMrV8, IsendV10, IrecvV10>>;

const _: () = {
    assert!(size_of::<NetTableV6>() == 17 * 8 && size_of::<NetTableV6>() == 136);
    assert!(size_of::<WholeV7>() == 152 && size_of::<WholeV8>() == 152);
    assert!(size_of::<WholeV9>() == 160 && size_of::<WholeV10>() == 160);
    assert!(size_of::<WholeV11>() == 176);
    assert!(offset_of!(NetTableV6, get_properties) == 3 * 8);
    assert!(offset_of!(NetTableV6, reg_mr) == 7 * 8);
    assert!(offset_of!(NetTableV6, isend) == 10 * 8);
    assert!(offset_of!(NetTableV6, test) == 13 * 8);
    assert!(offset_of!(NetTableV6, close_listen) == 16 * 8);
    assert!(offset_of!(WholeV7, get_device_mr) == 17 * 8);
    assert!(offset_of!(WholeV9, make_v_device) == 19 * 8);
    assert!(offset_of!(WholeV11, finalize) == 20 * 8);
    assert!(offset_of!(WholeV11, set_net_attr) == 21 * 8);
    assert!(size_of::<NetCommConfig>() == 4);
};

/// How a plug-in is initialised.
#[derive(Clone, Copy)]
pub enum InitCall {
    /// Once in a process.
    V6(InitV6),
    /// Once in a process.
    V10(InitV10),
    /// For each communicator; [`NetCalls::finalize`] ends it.
    V11(InitV11),
}

/// How it listens.
#[derive(Clone, Copy)]
pub enum ListenCall {
    V6(ListenV6),
    V11(ListenV11),
}

/// How it connects.
#[derive(Clone, Copy)]
pub enum ConnectCall {
    V6(ConnectV6),
    V7(ConnectV7),
    V10(ConnectV10),
    V11(ConnectV11),
}

/// How it accepts.
#[derive(Clone, Copy)]
pub enum AcceptCall {
    V6(AcceptV6),
    V7(AcceptV7),
}

/// How memory is registered.
#[derive(Clone, Copy)]
pub enum RegMrCall {
    V6(RegMrV6),
    V8(RegMrV8),
}

/// How a message is sent.
#[derive(Clone, Copy)]
pub enum IsendCall {
    V6(IsendV6),
    V9(IsendV9),
    V10(IsendV10),
}

/// How a message is received.
#[derive(Clone, Copy)]
pub enum IrecvCall {
    V6(IrecvV6),
    V9(IrecvV9),
    V10(IrecvV10),
}

/// The functions of a plug-in that are used here, whatever its version.
#[derive(Clone, Copy)]
pub struct NetCalls {
    pub devices: Devices,
    pub get_properties: GetProperties,
    pub listen: ListenCall,
    pub connect: ConnectCall,
    pub accept: AcceptCall,
    pub reg_mr: RegMrCall,
    pub dereg_mr: DeregMr,
    pub isend: IsendCall,
    pub irecv: IrecvCall,
    pub test: Test,
    pub close: CloseCalls,
    pub finalize: Option<Close>,
}

/// What ends what they have made.
#[derive(Clone, Copy)]
pub struct CloseCalls {
    pub send: Close,
    pub recv: Close,
    pub listen: Close,
}

/// A table of a known version.
enum AnyTable<'a> {
    V6(&'a NetTableV6),
    V7(&'a WholeV7),
    V8(&'a WholeV8),
    V9(&'a WholeV9),
    V10(&'a WholeV10),
    V11(&'a WholeV11),
}

impl AnyTable<'_> {
    /// # Safety
    /// At `table` lies a table of that version, which stays there and is not changed meanwhile.
    unsafe fn at<'a>(table: *const c_void, version: u32) -> AnyTable<'a> {
        // SAFETY: the caller says which version it is.
        unsafe {
            match version {
                6 => AnyTable::V6(&*table.cast()),
                7 => AnyTable::V7(&*table.cast()),
                8 => AnyTable::V8(&*table.cast()),
                9 => AnyTable::V9(&*table.cast()),
                10 => AnyTable::V10(&*table.cast()),
                _ => AnyTable::V11(&*table.cast()),
            }
        }
    }
}

/// What a table has from the beginning.
pub struct NetHead {
    /// What the plug-in calls itself; it may change when it is initialised.
    pub name: *const c_char,
    pub init: InitCall,
}

impl NetHead {
    /// The head of a table of a version from 6 to 12.
    ///
    /// # Errors
    /// The name of a member that is NULL and must not be.
    ///
    /// # Safety
    /// At `table` lies a table of that version, which nobody changes meanwhile.
    pub unsafe fn read(table: *const c_void, version: u32) -> Result<NetHead, &'static str> {
        // SAFETY: the caller says so.
        match unsafe { AnyTable::at(table, version) } {
            AnyTable::V6(table) => table.head(InitCall::V6),
            AnyTable::V7(table) => table.base.head(InitCall::V6),
            AnyTable::V8(table) => table.base.head(InitCall::V6),
            AnyTable::V9(table) => table.base.base.head(InitCall::V6),
            AnyTable::V10(table) => table.base.base.head(InitCall::V10),
            AnyTable::V11(table) => table.base.base.base.head(InitCall::V11),
        }
    }
}

/// What makes a function of one version one of [`NetCalls`].
struct Wrap<L, C, A, R, S, V> {
    listen: fn(L) -> ListenCall,
    connect: fn(C) -> ConnectCall,
    accept: fn(A) -> AcceptCall,
    reg_mr: fn(R) -> RegMrCall,
    isend: fn(S) -> IsendCall,
    irecv: fn(V) -> IrecvCall,
}

impl NetCalls {
    /// The functions in a table of a version from 6 to 12.
    ///
    /// # Errors
    /// The name of a member that is NULL and must not be.
    ///
    /// # Safety
    /// As for [`NetHead::read`].
    pub unsafe fn read(table: *const c_void, version: u32) -> Result<NetCalls, &'static str> {
        let (listen, connect, accept) = (ListenCall::V6, ConnectCall::V7, AcceptCall::V7);
        let (reg_mr, isend, irecv) = (RegMrCall::V8, IsendCall::V6, IrecvCall::V6);
        // SAFETY: the caller says so.
        match unsafe { AnyTable::at(table, version) } {
            AnyTable::V6(table) => {
                let (connect, accept, reg_mr) = (ConnectCall::V6, AcceptCall::V6, RegMrCall::V6);
                table.calls(Wrap { listen, connect, accept, reg_mr, isend, irecv })
            }
            AnyTable::V7(table) => {
                let reg_mr = RegMrCall::V6;
                table.base.calls(Wrap { listen, connect, accept, reg_mr, isend, irecv })
            }
            AnyTable::V8(table) => table.base.calls(Wrap { listen, connect, accept, reg_mr, isend, irecv }),
            AnyTable::V9(table) => {
                let (isend, irecv) = (IsendCall::V9, IrecvCall::V9);
                table.base.base.calls(Wrap { listen, connect, accept, reg_mr, isend, irecv })
            }
            AnyTable::V10(table) => {
                let (connect, isend, irecv) = (ConnectCall::V10, IsendCall::V10, IrecvCall::V10);
                table.base.base.calls(Wrap { listen, connect, accept, reg_mr, isend, irecv })
            }
            AnyTable::V11(table) => {
                let (listen, connect) = (ListenCall::V11, ConnectCall::V11);
                let (isend, irecv) = (IsendCall::V10, IrecvCall::V10);
                let calls = table.base.base.base.calls(Wrap { listen, connect, accept, reg_mr, isend, irecv })?;
                Ok(NetCalls { finalize: Some(table.finalize.ok_or("finalize")?), ..calls })
            }
        }
    }
}

impl<I, L, C, A, R, S, V> NetTable<I, L, C, A, R, S, V>
where
    I: Copy,
    L: Copy,
    C: Copy,
    A: Copy,
    R: Copy,
    S: Copy,
    V: Copy,
{
    fn head(&self, init: fn(I) -> InitCall) -> Result<NetHead, &'static str> {
        if self.name.is_null() {
            return Err("name");
        }
        Ok(NetHead { name: self.name, init: init(self.init.ok_or("init")?) })
    }

    fn calls(&self, wrap: Wrap<L, C, A, R, S, V>) -> Result<NetCalls, &'static str> {
        Ok(NetCalls {
            devices: self.devices.ok_or("devices")?,
            get_properties: self.get_properties.ok_or("getProperties")?,
            listen: (wrap.listen)(self.listen.ok_or("listen")?),
            connect: (wrap.connect)(self.connect.ok_or("connect")?),
            accept: (wrap.accept)(self.accept.ok_or("accept")?),
            reg_mr: (wrap.reg_mr)(self.reg_mr.ok_or("regMr")?),
            dereg_mr: self.dereg_mr.ok_or("deregMr")?,
            isend: (wrap.isend)(self.isend.ok_or("isend")?),
            irecv: (wrap.irecv)(self.irecv.ok_or("irecv")?),
            test: self.test.ok_or("test")?,
            close: CloseCalls {
                send: self.close_send.ok_or("closeSend")?,
                recv: self.close_recv.ok_or("closeRecv")?,
                listen: self.close_listen.ok_or("closeListen")?,
            },
            finalize: None,
        })
    }
}
