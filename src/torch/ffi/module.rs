//! Modules: loading, moving, naming, running.

use inspect_checkpoint::format::Loadable;

use super::values::Values;
use super::{
    CStr, Result, Tensor, c, c_char, c_int, c_text, c_void, call, pointer, ptr, take_text,
};

/// A loaded TorchScript module.
#[derive(Debug)]
pub(crate) struct Module(pub(super) *mut c::Module);

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: made by shim_module_load, freed once.
        unsafe { c::shim_module_free(self.0) }
    }
}

/// Kinds of tensors that a visit hands out besides parameters.
const BUFFER: c_int = 1;
const CONSTANT: c_int = 2;

/// What a visit of a module hands out.
pub(crate) struct NamedTensor {
    /// Path.
    pub(crate) name: String,
    /// In `named_buffers` instead of `named_parameters`.
    pub(crate) is_buffer: bool,
    /// The tensor itself (same memory).
    pub(crate) tensor: Tensor,
}

/// A method's schema as JSON, or the methods that exist.
pub(crate) enum Schema {
    /// JSON as shim.h describes it.
    Found(String),
    /// There is no such method; these there are.
    Missing(Vec<String>),
}

impl Module {
    /// Loads an archive; with `skip_data`, the memory of its tensors stays untouched.
    pub(crate) fn load(
        path: &str,
        archive: &Loadable,
        device: &str,
        skip_data: bool,
    ) -> Result<Module> {
        let (path, device) = (c_text(path)?, c_text(device)?);
        let pieces = archive.pieces.iter().map(|piece| c::Piece {
            in_head: c_int::from(piece.in_head),
            is_data: c_int::from(piece.is_data),
            offset: piece.offset,
            bytes: piece.bytes,
        });
        let pieces: Vec<c::Piece> = pieces.collect();
        let mut out = ptr::null_mut();
        // SAFETY: texts, pieces, their head and `out` live through the call; the pieces of the head lie in it.
        call(|e| unsafe {
            c::shim_module_load(
                path.as_ptr(),
                archive.head.as_ptr().cast(),
                pieces.as_ptr(),
                pieces.len(),
                device.as_ptr(),
                c_int::from(skip_data),
                &raw mut out,
                e,
            )
        })?;
        Ok(Module(out))
    }

    /// Training or eval mode.
    pub(crate) fn train(&self, on: bool) -> Result<()> {
        // SAFETY: the module is alive.
        call(|e| unsafe { c::shim_module_train(self.0, c_int::from(on), e) })
    }

    /// Moves to a device and casts floating-point tensors, as nn.Module.to does; with `as_python` also as the modules
    /// of torch.nn do that have a way of their own.
    pub(crate) fn to(&self, device: &str, scalar_type: Option<i8>, as_python: bool) -> Result<()> {
        let device = c_text(device)?;
        // SAFETY: module and text are alive.
        call(|e| unsafe {
            c::shim_module_to(
                self.0,
                device.as_ptr(),
                scalar_type.map_or(-1, c_int::from),
                c_int::from(as_python),
                e,
            )
        })
    }

    /// Parameters, then buffers, as libtorch names them.
    pub(crate) fn tensors(&self) -> Result<Vec<NamedTensor>> {
        let mut all = self.visit()?;
        all.retain(|(kind, _)| *kind != CONSTANT);
        Ok(all.into_iter().map(|(_, one)| one).collect())
    }

    /// Tensors that are constants of the methods' code, in its order: where a frozen module has its weights.
    pub(crate) fn constants(&self) -> Result<Vec<Tensor>> {
        let mut all = self.visit()?;
        all.retain(|(kind, _)| *kind == CONSTANT);
        Ok(all.into_iter().map(|(_, one)| one.tensor).collect())
    }

    fn visit(&self) -> Result<Vec<(c_int, NamedTensor)>> {
        extern "C" fn visit(
            context: *mut c_void,
            name: *const c_char,
            kind: c_int,
            tensor: *mut c_void,
        ) {
            // SAFETY: the context is the Vec below, alive through the call; name is NUL-terminated.
            let (all, name) = unsafe {
                (
                    &mut *context.cast::<Vec<(c_int, NamedTensor)>>(),
                    CStr::from_ptr(name),
                )
            };
            // SAFETY: the pointer is an at::Tensor of the shim; clone_from_ptr makes a handle of our own.
            let tensor = unsafe { Tensor::clone_from_ptr(tensor.cast()) };
            let named = NamedTensor {
                name: name.to_string_lossy().into_owned(),
                is_buffer: kind == BUFFER,
                tensor,
            };
            all.push((kind, named));
        }
        let mut all: Vec<(c_int, NamedTensor)> = Vec::new();
        // SAFETY: as said in `visit`.
        call(|e| unsafe { c::shim_module_visit(self.0, visit, (&raw mut all).cast(), e) })?;
        Ok(all)
    }

    /// The schema of a method.
    pub(crate) fn schema(&self, method: &str) -> Result<Schema> {
        let method = c_text(method)?;
        let (mut out, mut methods) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: module, text and places are alive.
        call(|e| unsafe {
            c::shim_module_schema(self.0, method.as_ptr(), &raw mut out, &raw mut methods, e)
        })?;
        Ok(match take_text(out) {
            Some(json) => Schema::Found(json),
            None => Schema::Missing(
                take_text(methods)
                    .unwrap_or_default()
                    .lines()
                    .map(str::to_owned)
                    .collect(),
            ),
        })
    }

    /// Marks every method's entry and exit for the recording; before the first run. With `as_python`, values live as
    /// long as an eager module's variables would hold them.
    pub(crate) fn mark(&self, as_python: bool) -> Result<()> {
        // SAFETY: the module is alive.
        call(|e| unsafe { c::shim_module_mark(self.0, c_int::from(as_python), e) })
    }

    /// Calls a method; the caller goes on holding the arguments.
    pub(crate) fn run(&self, method: &str, arguments: &Values) -> Result<Values> {
        let method = c_text(method)?;
        let results = Values::new();
        // SAFETY: module, text and both stacks are alive.
        call(|e| unsafe {
            c::shim_module_run(self.0, method.as_ptr(), arguments.0, results.0, e)
        })?;
        Ok(results)
    }

    /// Copies data into a parameter or buffer.
    pub(crate) fn assign(&self, name: &str, tensor: &Tensor) -> Result<()> {
        let name = c_text(name)?;
        // SAFETY: module, text and tensor are alive.
        call(|e| unsafe { c::shim_module_assign(self.0, name.as_ptr(), pointer(tensor), e) })
    }
}
