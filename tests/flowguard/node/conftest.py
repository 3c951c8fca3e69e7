from tests.flowguard.session.conftest import small_pages, store, version

__all__ = ["small_pages", "store", "version"]
