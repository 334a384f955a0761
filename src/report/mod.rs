//! From facts to text: exact report, view, renderers.
