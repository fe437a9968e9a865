def resume(app, i): 
    app.database.write(*[])
def stop(app, i): pass
