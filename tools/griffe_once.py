"""For the reference of the API: a class appears in the module that defines it, and not again in
the folder that gathers it. What ``ebm_app`` itself exports is shown there as well."""

from typing import Any

from griffe import Extension, Module


class OnceEach(Extension):
    """Forget ``__all__`` in every folder of a package but the package itself."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Called once, with all modules loaded."""
        for module in pkg.modules.values():
            if not module.is_alias:
                module.exports = None
                self.on_package(pkg=module)
